"""Why a job is stuck or slow: the evidence, the tables, the rules on them, and the reports.

It may import all rooms but `connection`, `serve` and `cli`.  Invariant: a rule is a pure function of what it is given,
and what is unknown is reported as unknown.

Add a diagnosis rule
    1. Write `rules/<name>.py` with a `Rule` (rule.py): a code, what it finds in one sentence, how it finds it, how
       severe that is, and the tables that it needs.  Where one query finds it, `find` is a `Sql`; each row that the
       query returns is a finding, so put the threshold into HAVING, with a comment that gives its reason:

           STARVED = Rule(
               "starved-workers", "No batch is ready when the training asks for one.",
               Sql("SELECT rank, loader, 100 * AVG((ready = 0)::INT) AS pct FROM python.dataloader_trace "
                   "WHERE NOT failed GROUP BY ALL HAVING pct > 50",
                   "{loader} had no batch ready in {pct:.0f} % of the steps on rank {rank}.",
                   "probe {endpoint} eval '{loader}.num_workers = 8'"),
               needs=("python.dataloader_trace",),
           )

       Otherwise `find` is a generator: of `Tables` (`for row in tables.query(sql)`), or, in a rule for `hang` that
       needs no tables, of the `Evidence`.  It yields a `Finding` for each fault, and nothing where it lacks data.
    2. Import it in `rules/__init__.py`.  That registers it; for a rule on evidence the place decides, the surest first.
    3. Run it: `list(STARVED.find(probe.connect("4242")))`.  Test it on a job with that fault and on a healthy one that
       comes close to it (tests/unit/diagnose).  Add the code of a rule on evidence to the table in docs/how-to/hang.md.
"""
