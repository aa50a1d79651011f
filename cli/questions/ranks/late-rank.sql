-- Which rank is late, and with what?
--
-- All ranks take equally long for a step, because they wait for one another. They differ in their own work: the step
-- minus the time for which collectives blocked them. `late_ms` is a rank's own work minus the mean of the others, in
-- the median step (`probe stragglers` takes the others' median). The late rank waits least, and the phase in which it
-- exceeds the others is the reason. With NCCL the device waits, not the host; use `probe 4242 stragglers` there, which
-- also tells whether the difference could be chance.

WITH steps AS (
  SELECT *, duration - comm_duration AS own, COUNT(*) OVER all_ranks AS ranks,
         (SUM(own) OVER all_ranks - own) / NULLIF(ranks - 1, 0) AS others
  FROM python.step_trace
  WHERE sampled AND comm_duration IS NOT NULL AND eval_duration = 0
  WINDOW all_ranks AS (PARTITION BY step)
  QUALIFY ranks = (SELECT COUNT(*) FROM probe.agents WHERE state = 'answers')
)
SELECT rank, COUNT(*) AS steps, MEDIAN(own - others) * 1e3 AS late_ms,
       100 * MEDIAN(own - others) / MEDIAN(duration) AS late_pct,
       MEDIAN(comm_duration) * 1e3 AS waits_ms,
       MEDIAN(data_duration) * 1e3 AS data_ms,
       MEDIAN(forward_duration) * 1e3 AS forward_ms,
       MEDIAN(backward_duration) * 1e3 AS backward_ms,
       MEDIAN(optimizer_duration) * 1e3 AS optimizer_ms,
       MEDIAN(other_duration) * 1e3 AS other_ms
FROM steps
GROUP BY rank
ORDER BY late_ms DESC
