-- Are slow steps slow because of the machine?
--
-- Compares the slowest tenth of each rank's steps with the rest, joining each step with the sample of the second in
-- which it began. A sample's rates cover the time before it, so the join takes the first sample after the step's start.
-- If `core_wait_pct` or `read_mb_s` is much higher in the slow steps, the machine is the reason; if not, the job is.

WITH steps AS (
  SELECT rank, time, duration, NTILE(10) OVER (PARTITION BY rank ORDER BY duration) = 10 AS slow
  FROM python.step_trace
  WHERE duration IS NOT NULL
)
SELECT s.rank, s.slow, COUNT(*) AS steps, AVG(s.duration) * 1e3 AS step_ms, AVG(p.cpu_pct) AS cpu_pct,
       AVG(p.core_wait_pct) AS core_wait_pct, AVG(p.host_cpu_pct) AS host_cpu_pct, AVG(p.read_mb_s) AS read_mb_s,
       AVG(p.major_faults_s) AS major_faults_s
FROM steps s ASOF JOIN host.process_trace p ON s.rank = p.rank AND s.time <= p.time
GROUP BY s.rank, s.slow
ORDER BY s.rank, s.slow
