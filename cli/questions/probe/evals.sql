-- Who ran what in this job?
--
-- For a snippet that ran at a boundary, `ms` is how long the training waited. `changed` lists the variables of the job
-- that the snippet rebound.

SELECT time, step, rank, "by", "where", duration * 1e3 AS ms, ok, error, code, changed
FROM probe.evals
ORDER BY time DESC NULLS FIRST, rank
LIMIT 10
