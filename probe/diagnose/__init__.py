"""Why a job is stuck or slow: the evidence, the tables, the rules on them, and the reports.

It may import all rooms but `connection`, `insight`, `serve` and `cli`.  Invariant: a rule is a pure function of what it
is given, and what is unknown is reported as unknown.

Add a diagnosis rule
    1. Write `rules/<room>/<name>.py` with a `Rule` (rule.py): a code, what it finds in one sentence, how it finds it,
       how severe that is, and the tables that it needs.  Where one query finds it, `find` is a `Sql`; each row that the
       query returns is a finding, so put the threshold into HAVING, with a comment that gives its reason:

           STARVED = Rule(
               "starved-workers", "No batch is ready when the training asks for one.",
               Sql("SELECT loader, AVG((ready = 0)::INT) AS share, AVG(wait_duration) AS seconds "
                   "FROM python.dataloader_trace WHERE {window} AND NOT failed GROUP BY ALL HAVING share > 0.5",
                   "{loader} had no batch ready in {share:.0%} of the steps.",
                   "probe {endpoint} eval '{loader}.num_workers = 8'"),
               needs=("python.dataloader_trace",), of=("input-bound",),
           )

       Otherwise `find` is a generator: of `Watched` (watched.py: the steps watched, their phases, any query; measures/
       has what several rules measure, such as where the thread stood), or, in a rule for `hang` that needs no tables,
       of the `Evidence`.  It yields a `Finding` for each fault, and nothing where it lacks data;
       rules/data/input_bound.py is one.
    2. Import it in `rules/__init__.py`.  That registers it; for a rule on evidence the place decides, the surest first.
    3. Run it: `probe 4242 why`.  Test it on planted rows (tests/planted.py), on a job with that fault and on a healthy
       one that comes close to it (tests/targets/sick).  Add the code to the table in docs/how-to/why.md, of a rule on
       evidence to that in docs/how-to/hang.md.
"""
