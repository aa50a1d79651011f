-- Are the first steps slower than later ones?
--
-- Allocators, caches and autotuning warm up, and torch.compile compiles. The first ten steps are the first after the
-- attach; with `probe run` they are the job's own first steps.

WITH steps AS (
  SELECT *, step < MIN(step) OVER (PARTITION BY rank) + 10 AS is_first
  FROM python.step_trace
  WHERE duration IS NOT NULL
)
SELECT rank, CASE WHEN is_first THEN 'first ten' ELSE 'later' END AS which, COUNT(*) AS steps,
       MEDIAN(duration) * 1e3 AS step_ms, MEDIAN(data_duration) * 1e3 AS data_ms,
       MEDIAN(forward_duration) * 1e3 AS forward_ms, MEDIAN(backward_duration) * 1e3 AS backward_ms,
       MEDIAN(optimizer_duration) * 1e3 AS optimizer_ms, MEDIAN(comm_duration) * 1e3 AS comm_ms
FROM steps
WHERE sampled
GROUP BY ALL
ORDER BY rank, which
