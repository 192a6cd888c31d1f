"""What looks at runs, before and after: on a terminal, in experiments, under a compiler, in virtual time.

`terminal` shows runs and follows them, `dashboard` does on a page; `lab` inflicts faults, compares, plans and replays;
`aot` compiles for devices that are not here; `simulation` runs seeds with faults and checks the invariants. It imports
`engine`, never the other way round."""
