-- Which collectives are in flight now?
--
-- Lists for each rank the operations that it has issued and that have not ended, the oldest first; NULL if there are
-- none. Ages of many seconds mean a hang, and `probe 4242 hang` says why.

SELECT a.rank, a.state, a.step, n.operation_type, n.group_name, n.group_seq, n.bytes, n.age_ms / 1e3 AS age_s
FROM probe.agents a LEFT JOIN python.nccl_trace n ON n.rank = a.rank AND n.state = 'in_flight'
ORDER BY a.rank, age_s DESC
