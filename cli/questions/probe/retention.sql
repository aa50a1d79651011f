-- How far back do the rows reach, and were any dropped?
--
-- Streams are rings: new rows replace the oldest. A table reaches as far back as the shortest of its streams
-- (`probe.tables` names them).

SELECT rank, stream, "rows", kept, 100 * dropped / "rows" AS dropped_pct, oldest_time, retention_mb
FROM probe.drops
WHERE "rows" > 0
ORDER BY rank, dropped_pct DESC, stream
