"""The programs: one short file per graph that can be trained, and what makes one into a run.

A program (`decoupled`, `streaming_diloco`, `diloco`, `data_parallel`, `elastic_data_parallel`) is a function that
builds a graph; `language_model` and `digits` are tasks. Below, `engine` makes a run go, `study` looks at runs, before
and after, and `command` is the command line. What users import is `face`, installed as `isthmus` itself.
"""
