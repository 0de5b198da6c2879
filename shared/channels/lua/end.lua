-- End a sequence: cancel, completion by a stop string, time-out or failure.
-- KEYS  1 leader  2 request record  3 token log  4 order  5 prompt  6 open  7 inbox  8 groups  9 totals
-- ARGV  1 sequence  2 outcome  3 finish_reason  4 code  5 message  6 tokens that count, or -1
--       7 only from this state, or ""  8 fence, or ""  9 events prefix
-- Returns FENCED, false (unknown), or the state before. A final state stays.
if ARGV[8] ~= '' and redis.call('GET', KEYS[1]) ~= ARGV[8] then return 'FENCED' end
local id, outcome, n_tokens = ARGV[1], ARGV[2], tonumber(ARGV[6])
local record = load_record(KEYS[2])
if not record.state then
  redis.call('ZREM', KEYS[6], id)
  return false
end
if is_final(record.state) then
  local lowers = outcome == 'completed' and record.state == 'completed'
    and n_tokens >= 0 and n_tokens < record.n_tokens
  if lowers then
    redis.call('HSET', KEYS[2], 'n_tokens', n_tokens, 'finish_reason', ARGV[3])
    tell(record.listeners, {kind = 'state', id = id, state = 'completed', attempt = record.attempt,
      n_tokens = n_tokens, finish_reason = ARGV[3]})
    flush(ARGV[9])
  end
  return record.state
end
if ARGV[7] ~= '' and record.state ~= ARGV[7] then return record.state end
local k = {request = KEYS[2], log = KEYS[3], order = KEYS[4], prompt = KEYS[5], open = KEYS[6],
  groups = KEYS[8], totals = KEYS[9]}
finish(k, id, record, outcome, ARGV[3], ARGV[4], ARGV[5], n_tokens)
inbox_event(KEYS[7], {kind = 'end', id = id})
flush(ARGV[9])
return record.state
