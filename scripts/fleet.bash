# What the comparisons have in common; sourced by them. Prepares their trace, and starts routers, each in front of its own
# simulated engines.
#
# TRACE is a file (turn trace, capture, Mooncake or Bailian, plain or gzip), a generator such as gen:agentic:1, a URL, or
# `mooncake`: the published hour of a chat service (12,031 turns).
#
# Environment: SCALE (how much faster the engines' clock runs, 4), CAPACITY_BLOCKS of BLOCK tokens (64) per engine (16000), ALPHA
# (0.05 ms per token), BETA (20 ms), TPOT (20 ms per token answered), PORT (first port, 18100), AS_IT_COMES=1 (routers are
# told nothing of the engines but their addresses).
turns=${TURNS:-500} scale=${SCALE:-4} alpha=${ALPHA:-0.05} beta=${BETA:-20} tpot=${TPOT:-20}
capacity=${CAPACITY_BLOCKS:-16000} block=${BLOCK:-64} port=${PORT:-18100} workers=4
bin=${BIN:-target/release}
command -v python3 >/dev/null || { echo "the report needs python3" >&2; exit 1; }
folder=$(mktemp -d)
pids=()
targets=() engines=()
quiet() {
  [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  pids=() targets=() engines=()
}
trap 'quiet; rm -rf "$folder"' EXIT

wall() { awk -v ms="$1" -v scale="$scale" 'BEGIN { printf "%.9f", ms / scale }'; }

# Writes the first TURNS turns of the trace $1 to $folder/trace.jsonl.
prepare() {
  local source=$1
  [ "$source" != mooncake ] || source=$mooncake
  case $source in
    http://* | https://*)
      echo "trace: downloading $source" >&2
      curl -fsSL "$source" -o "$folder/download"
      source=$folder/download
      ;;
  esac
  "$bin/tailroute-lab" trace "$source" --turns "$turns" >"$folder/trace.jsonl"
}
mooncake=https://raw.githubusercontent.com/kvcache-ai/Mooncake/main/FAST25-release/traces/conversation_trace.jsonl
if [ -n "${trace:-}" ]; then
  echo "trace: the first $turns turns of $trace" >&2
  prepare "$trace"
  trace=$folder/trace.jsonl
fi

# Of the trace $1: the seconds that its turns span, milliseconds of prefill in them if nothing were cached, and when the
# share $2 of them has arrived, in seconds after the first.
measure() {
  awk -v alpha="$alpha" -v beta="$beta" -v share="${2:-0}" '
      function field(name) { return match($0, "\"" name "\": *[0-9.]+") ? substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0 : 0 }
      /"ts"/ { at[n++] = field("ts"); work += beta + alpha * (field("prompt_tokens") + field("history_tokens")) }
      END { print at[n - 1] - at[0], work, at[int(share * n)] - at[0] }' "$1"
}

# Times the trace's pace at which the engines would be busy for the share $1 of their time if nothing were cached.
speed_of() {
  awk -v load="$1" -v workers="$workers" -v scale="$scale" -v span="$span" -v work="$work" \
    'BEGIN { if (!(work > 0)) exit 1; printf "%.4f", load * workers * scale * span * 1000 / work }' ||
    { echo "the trace has no prompts to compute; set SPEED" >&2; return 1; }
}

# Starts the router of policy $1, called $2 (or like its policy), with $3 at the end of its configuration's head, and its
# engines. Under `tail` they are told what to drop first by the rule $4 (queue-aware); under the other policies they run plain
# LRU, as their routers do.
start() {
  local policy=$1 name=${2:-$1} rule=off ready= engine
  local config=$folder/$name.toml router=$port admin=$((port + 1))
  port=$((port + 2))
  if [ "$policy" = tail ]; then rule=${4:-queue-aware}; fi
  cat >"$config" <<TOML
[server]
listen = "127.0.0.1:$router"
[admin]
listen = "127.0.0.1:$admin"
[log]
level = "warn"
[routing]
policy = "$policy"
utilisation_window_s = $(awk -v scale="$scale" 'BEGIN { print 60 / scale }')
[objective]
ttft_ms = $(wall 2000)
[hints]
rule = "$rule"
${3:-}
TOML
  for engine in $(seq "$workers"); do
    "$bin/sim-engine" --listen "127.0.0.1:$port" --alpha-ms "$alpha" --beta-ms "$beta" --block-size $block \
      --capacity-blocks "$capacity" --time-scale "$scale" --tpot-ms "$tpot" >"$folder/engine-$port.log" 2>&1 &
    pids+=($!)
    cat >>"$config" <<TOML
[[workers]]
name = "engine-$engine"
url = "http://127.0.0.1:$port"
TOML
    [ -n "${AS_IT_COMES:-}" ] || cat >>"$config" <<TOML
alpha_ms_per_token = $(wall "$alpha")
beta_ms = $(wall "$beta")
capacity_tokens = $((capacity * block))
block_size_tokens = $block
TOML
    engines+=("$name=http://127.0.0.1:$port")
    port=$((port + 1))
  done
  "$bin/tailroute" serve --config "$config" >"$folder/$name.log" 2>&1 &
  pids+=($!)
  targets+=(--target "$name=http://127.0.0.1:$router")
  for _ in $(seq 100); do
    if curl -fsS "http://127.0.0.1:$admin/readyz" >/dev/null 2>&1; then ready=yes && break; fi
    sleep 0.1
  done
  [ -n "$ready" ] || { echo "$name did not become ready; its log:" >&2; cat "$folder/$name.log" >&2; return 1; }
}
