-- What does probe itself cost?
--
-- Medians of steps recorded in full, of unsampled steps, and of bare steps, in which the only tap is the one that
-- counts steps. `cost_pct` is NULL while there are fewer than thirty steps of a kind; with `sample=1` there are no bare
-- steps. Ten of every 640 steps are bare. If the machine's load changes, as here, it takes about a hundred bare steps
-- before the figure is more than noise.

SELECT rank, steps_of, steps, median_duration * 1e3 AS median_ms, 100 * (over_bare - 1) AS cost_pct,
       sample, every, budget_pct
FROM probe.overhead
ORDER BY rank, median_ms DESC NULLS LAST
