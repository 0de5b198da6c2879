-- Send one iteration to an engine. The stream itself refuses a repeat and a dead engine.
-- KEYS  1 leader  2 batches of the engine  3 totals  then the members' request records
-- ARGV  1 fence  2 engine id  3 iteration  4 descriptor  5 trim before this iteration
--       6 events prefix  then per member: id, attempt, `first` or `continuing`
-- Returns FENCED, GONE, or the ids of members that may not run; if there are any, nothing was sent.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'FENCED' end
local info = redis.pcall('XINFO', 'STREAM', KEYS[2])
if info.err then return 'GONE' end
local last
for i = 1, #info, 2 do
  if info[i] == 'last-generated-id' then last = tonumber(string.match(info[i + 1], '^%d+')) end
end
if last >= tonumber(ARGV[3]) then return {} end

local refused, starting = {}, {}
for i = 4, #KEYS do
  local at_arg = 6 + 3 * (i - 4)
  local id, attempt, kind = ARGV[at_arg + 1], tonumber(ARGV[at_arg + 2]), ARGV[at_arg + 3]
  local record = load_record(KEYS[i])
  local fits = record.attempt == attempt
  if kind == 'first' then
    fits = fits and record.state == 'waiting'
    starting[#starting + 1] = {id = id, record = record}
  else
    fits = fits and record.state == 'running' and record.engine == ARGV[2]
  end
  if not fits then refused[#refused + 1] = id end
end
if #refused > 0 then return refused end

redis.call('XADD', KEYS[2], ARGV[3] .. '-0', 'm', ARGV[4])
redis.call('XTRIM', KEYS[2], 'MINID', ARGV[5] .. '-0')
local at = now()
for _, starter in ipairs(starting) do
  local record = starter.record
  redis.call('HSET', record.key, 'state', 'running', 'engine', ARGV[2])
  redis.call('HSETNX', record.key, 'at_started', at)
  redis.call('HINCRBY', KEYS[3], 'running', 1)
  tell(record.listeners, {kind = 'state', id = starter.id, state = 'running', attempt = record.attempt})
end
flush(ARGV[6])
return {}
