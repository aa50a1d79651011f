-- Which steps are the slowest, and what did they do differently?
--
-- Each `…_more` column is how many milliseconds the phase took beyond that rank's usual time. Usually one phase stands
-- out: a checkpoint shows in `other`, a restarted loader in `data`, another rank in `comm`.

WITH usual AS (
  SELECT rank, MEDIAN(duration) AS step, MEDIAN(data_duration) AS data, MEDIAN(forward_duration) AS forward,
         MEDIAN(backward_duration) AS backward, MEDIAN(optimizer_duration) AS optimizer,
         MEDIAN(comm_duration) AS comm, MEDIAN(other_duration) AS other
  FROM python.step_trace
  WHERE sampled
  GROUP BY rank
)
SELECT s.step, s.rank, s.duration * 1e3 AS ms, (s.duration - u.step) * 1e3 AS more,
       (s.data_duration - u.data) * 1e3 AS data_more, (s.forward_duration - u.forward) * 1e3 AS forward_more,
       (s.backward_duration - u.backward) * 1e3 AS backward_more,
       (s.optimizer_duration - u.optimizer) * 1e3 AS optimizer_more,
       (s.comm_duration - u.comm) * 1e3 AS comm_more, (s.other_duration - u.other) * 1e3 AS other_more,
       s.eval_duration * 1e3 AS eval_ms
FROM python.step_trace s JOIN usual u USING (rank)
WHERE s.sampled
ORDER BY s.duration DESC NULLS LAST
LIMIT 8
