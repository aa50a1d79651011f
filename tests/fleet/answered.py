"""Queries that fleet answers, of every kind that Daft answers as DuckDB does."""

from __future__ import annotations

ANSWERED = (
    "SELECT a.step, a.duration - b.duration FROM python.step_trace a JOIN python.step_trace b USING (step) "
    "WHERE a.rank = 0 AND b.rank = 1 ORDER BY 1",
    "SELECT a.step, b.duration FROM python.step_trace a JOIN python.step_trace b ON a.step = b.step AND a.job "
    "= b.job WHERE a.rank = 0 AND b.rank = 1",
    "SELECT a.job, a.step, a.duration, b.duration FROM python.step_trace a LEFT JOIN python.step_trace b ON "
    "a.step = b.step AND a.job = b.job AND a.rank = b.rank WHERE a.rank < 2",
    "SELECT t.rank, t.step, s.duration, sum(t.duration) FROM python.torch_trace t JOIN python.step_trace s "
    "USING (rank, step) WHERE t.step >= 36 GROUP BY ALL ORDER BY ALL",
    "SELECT a.rank, b.rank, count(*) FROM python.step_trace a JOIN python.step_trace b USING (step) WHERE "
    "a.rank < b.rank GROUP BY ALL ORDER BY ALL",
    "SELECT job, rank, step, duration - lag(duration) OVER (PARTITION BY job, rank ORDER BY step) AS d FROM "
    "python.step_trace ORDER BY ALL",
    "SELECT job, rank, step, avg(duration) OVER (PARTITION BY job, rank ORDER BY step ROWS BETWEEN 3 "
    "PRECEDING AND CURRENT ROW) AS d FROM python.step_trace WHERE duration < 2 ORDER BY ALL",
    "SELECT job, count(*), avg(duration), min(step), max(module) FROM python.torch_trace GROUP BY job ORDER BY job",
    "SELECT job, rank, module, sum(duration) s FROM python.torch_trace GROUP BY ALL HAVING sum(duration) > 1 "
    "ORDER BY s DESC LIMIT 5",
    "SELECT step // 10 * 10 AS b, count(*) n FROM python.step_trace GROUP BY 1 ORDER BY n DESC, b",
    "SELECT step % 10 AS step, count(*) n FROM python.step_trace GROUP BY ALL ORDER BY 1",
    "SELECT rank + 1, count(*) FROM python.step_trace GROUP BY rank",
    "SELECT rank, sum(step) / count(*) AS m, sum(step) AS s, avg(step) FROM python.step_trace GROUP BY rank "
    "HAVING sum(step) > 3 ORDER BY m",
    "SELECT rank, max(duration) - min(duration) AS spread FROM python.step_trace WHERE duration < 5 GROUP BY "
    "rank ORDER BY spread DESC",
    "SELECT x.rank, x.m, y.n FROM (SELECT rank, avg(step) AS m FROM python.step_trace GROUP BY rank) x JOIN "
    "(SELECT rank, count(*) n FROM python.torch_trace GROUP BY rank) y ON x.rank = y.rank ORDER BY 1",
    "WITH f AS (SELECT job, step, max(duration) AS slowest FROM python.step_trace WHERE duration < 2 GROUP BY "
    "job, step) SELECT s.job, s.rank, count(*) FROM python.step_trace s JOIN f ON s.job = f.job AND s.step = "
    "f.step WHERE s.duration = f.slowest GROUP BY ALL ORDER BY ALL",
    "SELECT rank, sum(CASE WHEN in_eval THEN 1 ELSE 0 END), count(*) FILTER (WHERE in_eval), "
    "bool_or(in_eval), bool_and(in_eval) FROM python.step_trace GROUP BY rank",
    "SELECT rank, CASE WHEN in_eval THEN 'e' WHEN duration > 0.5 THEN 'slow' ELSE 'fast' END AS k, count(*) "
    "FROM python.step_trace GROUP BY ALL",
    "SELECT count(*) FROM python.step_trace WHERE duration > 0.5",
    "SELECT count(*) FROM python.step_trace WHERE NOT (duration > 0.5)",
    "SELECT max(duration), min(duration) FROM python.step_trace",
    "SELECT rank, max(duration), min(duration), sum(duration), avg(duration) FROM python.step_trace GROUP BY rank",
    "SELECT duration FROM python.step_trace ORDER BY duration DESC LIMIT 20",
    "SELECT duration FROM python.step_trace ORDER BY duration DESC NULLS FIRST LIMIT 20",
    "SELECT duration, count(*) FROM python.step_trace GROUP BY duration",
    "SELECT DISTINCT in_eval, rank FROM python.step_trace ORDER BY rank, in_eval",
    "SELECT a.step AS s, b.step AS s2 FROM python.step_trace a, python.step_trace b WHERE a.rank = b.rank AND "
    "a.job = b.job AND a.step = b.step AND a.rank = 1 ORDER BY 1",
    "SELECT column_name, unit FROM probe.columns WHERE column_name = 'step'",
    "SELECT * FROM python.nccl_trace",
    "SELECT job, arrived FROM probe.collectives",
    "SELECT duration * 1.5 AS d, step * 15e-1 AS e, -duration, abs(duration), round(duration, 2), "
    "floor(duration) FROM python.step_trace",
    "SELECT rank, r, step FROM (SELECT rank, step, job, row_number() OVER (PARTITION BY job, rank ORDER BY "
    "duration DESC, step) AS r FROM python.step_trace) WHERE r <= 3 ORDER BY job, rank, r",
    "SELECT job, rank, sum(sum(duration)) OVER (PARTITION BY job) FROM python.torch_trace GROUP BY job, rank",
    "SELECT job, rank, avg(duration) / avg(avg(duration)) OVER (PARTITION BY job) AS ratio FROM "
    "python.torch_trace GROUP BY job, rank ORDER BY 1, 2",
    "SELECT count(*) FROM python.torch_trace t WHERE NOT EXISTS (SELECT 1 FROM python.step_trace s WHERE "
    "s.step = t.step AND s.job = t.job AND s.rank = t.rank AND s.duration > 0.5)",
    "SELECT rank FROM python.step_trace WHERE step = 3 UNION ALL SELECT rank FROM python.torch_trace WHERE "
    "step = 4 ORDER BY 1 LIMIT 10",
    "SELECT step FROM python.step_trace WHERE time > '2026-01-01' OR time IS NULL ORDER BY step LIMIT 3",
    "SELECT date_trunc('hour', time) h, count(*) FROM python.step_trace GROUP BY 1",
    "SELECT rank, count(in_eval) OVER (PARTITION BY rank) c FROM python.step_trace",
    "SELECT rank, step, lead(duration, 2) OVER (PARTITION BY job, rank ORDER BY step DESC) c FROM python.step_trace",
    "SELECT max(step) FROM python.step_trace WHERE step > 1000",
    "SELECT sum(duration), count(*), sum(step) FROM python.step_trace WHERE step > 1000",
    "SELECT count(DISTINCT rank), count(DISTINCT duration) FROM python.step_trace",
    "SELECT duration / 0, step / 0 FROM python.step_trace",
    "SELECT upper(module), lower(stage), contains(module, 'o'), starts_with(module, 'b') FROM python.torch_trace",
    "SELECT rank AS step, step AS rank FROM python.step_trace ORDER BY step, rank",
    "SELECT rank AS r, count(*) AS rank FROM python.step_trace GROUP BY r ORDER BY rank, r",
    "SELECT t.* FROM python.step_trace t JOIN python.torch_trace u ON t.step = u.step AND t.rank = u.rank AND "
    "t.job = u.job",
    "SELECT * FROM python.step_trace t JOIN probe.drops u ON t.rank = u.rank",
    "SELECT coalesce(duration, 0e0), coalesce(module, stage, 'x') FROM python.torch_trace",
    "SELECT max(duration / (step - 3)), min(duration / (step - 3)), max((step - 3) / (step - 3)), min((step - "
    "3) / (step - 3)) FROM python.step_trace",
    "SELECT rank, max((step - 3) / (step - 3)), min((step - 3) / (step - 3)) FROM python.step_trace GROUP BY rank",
    "SELECT job, max(duration) FILTER (WHERE rank = 1) - min(duration) FILTER (WHERE rank = 1) FROM "
    "python.step_trace GROUP BY job",
)
