"""Two levels: decides how regions merge among themselves what their learners have merged in each."""
