"""Queries of every kind that SQL has, over one rank and over several: for tests that compare ways to answer them."""

# ruff: noqa: E501

from __future__ import annotations

QUERIES = (
    # counts and plain filters
    "SELECT count(*) FROM python.torch_trace",
    "SELECT count(*) FROM python.torch_trace WHERE step > 30",
    "SELECT count(*), count(DISTINCT module), count(parent) FROM python.torch_trace WHERE step BETWEEN 20 AND 40",
    "SELECT * FROM python.torch_trace WHERE step = 33 ORDER BY rank, seq, start_ns, depth, module",
    "SELECT module, stage FROM python.torch_trace WHERE step = 33 AND rank = 1 ORDER BY ALL",
    "SELECT * EXCLUDE (time, duration) FROM python.torch_trace WHERE step IN (5, 35, 1000) ORDER BY ALL",
    "SELECT count(*) FROM python.torch_trace WHERE step > 1000",
    "SELECT count(*) FROM python.torch_trace WHERE step < 0",
    "SELECT count(*) FROM python.torch_trace WHERE step >= 30 OR rank = 2",
    "SELECT count(*) FROM python.torch_trace WHERE NOT (step < 30)",
    "SELECT count(*) FROM python.torch_trace WHERE step > 30 AND step <= 31 AND rank <> 0",
    "SELECT count(*) FROM python.torch_trace WHERE step > 30.5",
    "SELECT count(*) FROM python.torch_trace WHERE step % 7 = 3",
    "SELECT count(*) FROM python.torch_trace WHERE 35 <= step AND stage = 'backward'",
    "SELECT count(*) FROM python.torch_trace WHERE step IS NULL",
    "SELECT count(*) FROM python.torch_trace WHERE rank IN (0, 2) AND step > 10 AND module LIKE 'block%'",
    "SELECT DISTINCT module FROM python.torch_trace WHERE module LIKE '%norm%' OR module ILIKE 'MODEL' ORDER BY 1",
    "SELECT count(*) FROM python.torch_trace WHERE regexp_matches(module, '^block\\d$')",
    "SELECT module FROM python.torch_trace WHERE duration > 0.01 AND step > 25 ORDER BY duration DESC, module LIMIT 7",
    "SELECT step FROM python.torch_trace WHERE stage = 'step' ORDER BY step DESC, rank LIMIT 5 OFFSET 2",
    # NULL and NaN
    "SELECT count(*) FROM python.torch_trace WHERE parent IS NULL AND step > 20",
    "SELECT count(*) FROM python.torch_trace WHERE parent IS NOT DISTINCT FROM NULL",
    "SELECT count(*) FILTER (WHERE allocated IS NULL), sum(allocated) FROM python.torch_trace WHERE step > 12",
    "SELECT max(CASE WHEN rank = 0 THEN 'NaN'::DOUBLE ELSE duration END) FROM python.torch_trace WHERE step > 20",
    "SELECT coalesce(parent, 'none') p, count(*) FROM python.torch_trace WHERE step > 5 GROUP BY ALL ORDER BY ALL",
    "SELECT nullif(stage, 'step') s, count(*) FROM python.torch_trace GROUP BY ALL ORDER BY s NULLS FIRST",
    # aggregates
    "SELECT rank, module, stage, sum(duration), avg(duration) FROM python.torch_trace GROUP BY ALL ORDER BY ALL",
    "SELECT stage, sum(duration) FROM python.torch_trace WHERE step > 20 GROUP BY stage HAVING count(*) > 3 ORDER BY 1",
    "SELECT rank, stage, count(*) FROM python.torch_trace WHERE step > 30 GROUP BY ROLLUP (rank, stage) ORDER BY ALL",
    "SELECT rank, stage, count(*) FROM python.torch_trace GROUP BY CUBE (rank, stage) ORDER BY ALL",
    "SELECT rank, stage, count(*) FROM python.torch_trace GROUP BY GROUPING SETS ((rank), (stage), ()) ORDER BY ALL",
    "SELECT quantile_cont(duration, [0.5, 0.9]) FROM python.torch_trace WHERE stage = 'forward' AND step >= 10",
    "SELECT median(duration), mad(duration), stddev(duration) FROM python.torch_trace WHERE step > 30 AND rank = 0",
    "SELECT step, list(module ORDER BY seq, module) FROM python.torch_trace WHERE step > 37 AND rank = 0 GROUP BY 1 "
    "ORDER BY 1",
    "SELECT string_agg(DISTINCT stage, ',' ORDER BY stage) FROM python.torch_trace WHERE step > 30",
    "SELECT arg_max(module, duration), max_by(step, duration) FROM python.torch_trace WHERE step > 4",
    "SELECT bool_and(NOT failed), bool_or(recompute), bit_xor(seq) FROM python.torch_trace WHERE step > 25",
    "SELECT approx_count_distinct(module) > 2 FROM python.torch_trace WHERE step > 20",
    "SELECT histogram(stage) FROM python.torch_trace WHERE step = 21",
    # the largest step
    "SELECT max(step) FROM python.torch_trace",
    "SELECT max(step) AS last FROM python.torch_trace WHERE rank = 1",
    "SELECT max(step) - 10 FROM python.torch_trace WHERE stage = 'backward'",
    "SELECT max(step) FROM python.torch_trace WHERE module = 'nobody'",
    "SELECT max(step), min(step) FROM python.torch_trace",
    "SELECT max(step) FROM python.torch_trace GROUP BY rank ORDER BY 1",
    "SELECT max(step % 7) FROM python.torch_trace",
    # subqueries
    "SELECT count(*) FROM python.torch_trace WHERE step > (SELECT max(step) - 10 FROM python.torch_trace)",
    "SELECT count(*) FROM python.torch_trace WHERE step > (SELECT max(step) FROM python.torch_trace) - 5",
    "SELECT count(*) FROM python.torch_trace t WHERE t.step >= (SELECT max(s.step) FROM python.step_trace s)",
    "SELECT module, sum(duration) FROM python.torch_trace WHERE step > (SELECT max(step) - 3 FROM torch_trace) "
    "GROUP BY 1 ORDER BY 1",
    "SELECT count(*) FROM python.torch_trace WHERE duration > (SELECT avg(duration) FROM python.torch_trace)",
    "SELECT count(*) FROM python.torch_trace a WHERE duration > "
    "(SELECT avg(duration) FROM python.torch_trace b WHERE b.step = a.step AND b.rank = a.rank) AND step > 30",
    "SELECT DISTINCT step FROM python.torch_trace a WHERE EXISTS (SELECT 1 FROM python.step_trace s "
    "WHERE s.step = a.step AND s.rank = a.rank AND s.duration > 0.2) ORDER BY 1",
    "SELECT count(*) FROM python.torch_trace a WHERE NOT EXISTS "
    "(SELECT 1 FROM python.torch_trace b WHERE b.step = a.step + 1 AND b.rank = a.rank)",
    "SELECT count(*) FROM python.torch_trace WHERE step IN (SELECT step FROM python.step_trace WHERE rank = 1 "
    "AND step > 20)",
    "SELECT count(*) FROM python.torch_trace WHERE (rank, step) NOT IN (SELECT (rank, step) FROM python.step_trace "
    "WHERE duration > 0.1)",
    "SELECT (SELECT max(step) FROM python.torch_trace) AS last, (SELECT count(*) FROM python.step_trace) AS steps",
    "SELECT count(*) FROM python.torch_trace WHERE step > ALL (SELECT step FROM python.step_trace WHERE step < 30)",
    "SELECT count(*) FROM python.torch_trace WHERE step = ANY (SELECT max(step) FROM python.torch_trace GROUP BY rank)",
    # common table expressions
    "WITH w AS (SELECT * FROM python.torch_trace WHERE step > 30) SELECT rank, count(*) FROM w GROUP BY 1 ORDER BY 1",
    "WITH m AS (SELECT max(step) AS m FROM python.torch_trace) SELECT count(*) FROM python.torch_trace, m "
    "WHERE step >= m - 2",
    "WITH a AS (SELECT * FROM python.torch_trace WHERE step > 38), b AS (SELECT * FROM python.torch_trace "
    "WHERE step < 3) SELECT (SELECT count(*) FROM a) - (SELECT count(*) FROM b)",
    "WITH RECURSIVE up(module, parent, n) AS (SELECT DISTINCT module, parent, 0 FROM python.torch_trace "
    "WHERE step = 30 AND rank = 0 AND stage = 'forward' UNION SELECT up.module, t.parent, n + 1 FROM up "
    "JOIN (SELECT DISTINCT module, parent FROM python.torch_trace WHERE step = 30 AND rank = 0 AND stage = 'forward') t "
    "ON t.module = up.parent) SELECT module, max(n) FROM up GROUP BY 1 ORDER BY ALL",
    "WITH RECURSIVE n(i) AS (SELECT 35 UNION ALL SELECT i + 1 FROM n WHERE i < 39) SELECT i, count(t.step) FROM n "
    "LEFT JOIN python.torch_trace t ON t.step = i GROUP BY 1 ORDER BY 1",
    "WITH s AS MATERIALIZED (SELECT * FROM python.torch_trace WHERE rank = 2) SELECT count(*), max(step) FROM s",
    # windows
    "SELECT step, rank, duration - lag(duration) OVER (PARTITION BY rank ORDER BY step) FROM python.step_trace "
    "ORDER BY ALL",
    "SELECT * FROM (SELECT step, rank, module, row_number() OVER (PARTITION BY rank, step ORDER BY duration DESC, module) "
    "r FROM python.torch_trace WHERE stage = 'forward') WHERE r = 1 AND step > 30 ORDER BY ALL",
    "SELECT step, avg(duration) OVER (ORDER BY step ROWS 3 PRECEDING) FROM python.step_trace WHERE rank = 0 ORDER BY 1",
    "SELECT rank, step, ntile(4) OVER (PARTITION BY rank ORDER BY duration, step) q FROM python.step_trace "
    "QUALIFY q = 4 ORDER BY ALL",
    "SELECT module, sum(duration) s, sum(s) OVER () total FROM python.torch_trace WHERE step > 20 GROUP BY 1 ORDER BY 1",
    # joins, across ranks too
    "SELECT a.step, a.duration - b.duration FROM python.step_trace a JOIN python.step_trace b USING (step) "
    "WHERE a.rank = 0 AND b.rank = 1 ORDER BY 1",
    "SELECT a.step, max(b.duration / a.duration) FROM python.torch_trace a JOIN python.torch_trace b "
    "ON a.step = b.step AND a.module = b.module AND a.stage = b.stage AND a.rank = 0 AND b.rank = 2 "
    "WHERE a.step > 35 GROUP BY 1 ORDER BY 1",
    "SELECT t.rank, t.step, s.duration, sum(t.duration) FROM python.torch_trace t JOIN python.step_trace s "
    "USING (rank, step) WHERE t.step >= 36 GROUP BY ALL ORDER BY ALL",
    "SELECT count(*) FROM python.step_trace s LEFT JOIN python.torch_trace t ON t.step = s.step + 1 AND t.rank = s.rank "
    "WHERE t.step IS NULL",
    "SELECT count(*) FROM python.torch_trace t FULL JOIN python.dataloader_trace d ON t.step = d.step + 30",
    "SELECT count(*) FROM python.torch_trace SEMI JOIN python.step_trace USING (rank, step)",
    "SELECT count(*) FROM python.torch_trace t ANTI JOIN python.dataloader_trace d ON t.step = d.step AND d.rank = 1",
    "SELECT t.rank, t.step, d.wait_duration FROM python.step_trace t ASOF LEFT JOIN python.dataloader_trace d "
    "ON t.rank = d.rank AND t.start_ns >= d.start_ns ORDER BY ALL",
    "SELECT a.rank, b.rank, count(*) FROM python.nccl_trace a JOIN python.nccl_trace b USING (group_seq) "
    "WHERE a.rank < b.rank AND a.step > 20 GROUP BY ALL ORDER BY ALL",
    "SELECT x.step, count(*) FROM python.torch_trace x, LATERAL (SELECT x.step + 1 AS next) l, python.step_trace s "
    "WHERE s.step = l.next AND s.rank = x.rank AND x.step > 36 GROUP BY 1 ORDER BY 1",
    "SELECT count(*) FROM python.step_trace a CROSS JOIN python.step_trace b WHERE a.step > 38 AND b.step > 38",
    "SELECT count(*) FROM python.torch_trace POSITIONAL JOIN range(5)",
    # shapes of results
    "PIVOT (SELECT rank, stage, duration FROM python.torch_trace WHERE step > 30) ON stage USING sum(duration) "
    "GROUP BY rank ORDER BY rank",
    "UNPIVOT (SELECT rank, step, duration, other_duration FROM python.step_trace WHERE step > 37) "
    "ON duration, other_duration INTO NAME what VALUE s ORDER BY ALL",
    "SELECT step, {'rank': rank, 'n': count(*)} FROM python.torch_trace WHERE step > 38 GROUP BY step, rank ORDER BY ALL",
    "SELECT unnest(list(DISTINCT rank ORDER BY rank)) FROM python.torch_trace WHERE step > 30",
    "SELECT list_transform(list(step ORDER BY step), lambda s: s * 2) FROM python.step_trace WHERE rank = 0",
    "SELECT array_agg(group_ranks) FROM python.nccl_trace WHERE step = 30 AND rank = 0",
    "SELECT count(*) FROM (SELECT step FROM python.torch_trace WHERE step > 30 UNION SELECT step FROM "
    "python.step_trace)",
    "SELECT step FROM python.torch_trace WHERE step > 35 INTERSECT SELECT step FROM python.step_trace WHERE rank = 2 "
    "ORDER BY 1",
    "SELECT step FROM python.step_trace EXCEPT SELECT step FROM python.torch_trace WHERE step > 10 ORDER BY 1",
    "SELECT max(COLUMNS('.*duration')) FROM python.step_trace WHERE step > 5",
    "SELECT time_bucket(INTERVAL 1 SECOND, time) b, count(*) FROM python.torch_trace WHERE step > 15 GROUP BY 1 ORDER BY 1",
    "SUMMARIZE SELECT step, duration FROM python.step_trace WHERE rank = 1",
    "FROM python.torch_trace SELECT step, count(*) WHERE step >= 37 GROUP BY ALL ORDER BY ALL",
    "SELECT * FROM python.dataloader_trace WHERE step > 30 AND rank = 1 ORDER BY ALL",
    "SELECT rank, cpu_pct, host_cpu_pct FROM host.process_trace ORDER BY ALL",
    "SELECT rank, pid, python FROM probe.agents ORDER BY 1",
    "SELECT rank, count(*), max(rows) FROM probe.drops GROUP BY 1 ORDER BY 1",
    "SELECT * FROM probe.collectives WHERE step > 30 ORDER BY ALL",
)
