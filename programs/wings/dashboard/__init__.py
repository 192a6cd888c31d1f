"""A page in the browser that follows runs: decides what of a run it shows, how often it looks, and to whom it answers.

`watched_run` looks at a run, `parts` words what it saw, `serving` answers browsers; `page.html`, `dashboard.css` and
`dashboard.js` show the parts, with the charts of the report. It only reads."""
