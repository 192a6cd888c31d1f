#!/usr/bin/env bash
# A second machine from zero, keys included: two network namespaces stand for two machines that share nothing but a cable.
# Needs root. Say where `isthmus` is if it is not on the path: PATH=$PWD/.venv/bin:$PATH docs/examples/two-machines.sh
set -euo pipefail
folder=$(mktemp -d) here=$$
alpha() { (cd "$folder/alpha" && XDG_STATE_HOME=$PWD/state exec ip netns exec "alpha-$here" "$@"); }
beta() { (cd "$folder/beta" && XDG_STATE_HOME=$PWD/state exec ip netns exec "beta-$here" "$@"); }
pids() { ip netns pids "alpha-$here"; ip netns pids "beta-$here"; }
end() {
    # A daemon that is told twice to end, ends its runs at once.
    until [ -z "$(pids)" ]; do pids | xargs -r kill 2>/dev/null || true; sleep 1; done
    ip netns delete "alpha-$here"; ip netns delete "beta-$here"
    rm -rf "$folder"
}
mkdir "$folder/alpha" "$folder/beta"
ip netns add "alpha-$here"; ip netns add "beta-$here"
trap end EXIT
ip link add name eth0 netns "alpha-$here" type veth peer name eth0 netns "beta-$here"
for each in "alpha-$here 10.178.0.1/24" "beta-$here 10.178.0.2/24"; do
    read -r name address <<<"$each"
    ip -n "$name" address add "$address" dev eth0
    ip -n "$name" link set lo up; ip -n "$name" link set eth0 up
done

# The first machine: a key, a daemon, a run that goes on.
alpha isthmus keygen alpha
cat >"$folder/alpha/machine.toml" <<'END'
[keys]
secret = "alpha.key"
END
cat >"$folder/alpha/cluster.toml" <<'END'
[keys]
secret = "alpha.key"
[[machine]]
name = "alpha"
address = "tcp://10.178.0.1:7400"
public_key = "alpha.pub"
islands = 1
END
alpha isthmus daemon --name alpha --listen tcp://10.178.0.1:7400 --config machine.toml &
until alpha isthmus train --cluster cluster.toml --tokens 1000000000 --run-dir run --detach 2>"$folder/error"; do
    grep -q "found nobody" "$folder/error" || { cat "$folder/error"; exit 1; }
    sleep 1
done
until [ -s "$folder/alpha/run/merges.jsonl" ]; do sleep 0.2; done

# The second machine. Its learner is in slot 1.
echo; echo "--- the second machine"
begun=$(date +%s%N)
alpha isthmus invite beta                       # command 1, on alpha
mv "$folder/alpha/beta.invite" "$folder/beta"
beta isthmus join --invite beta.invite &        # command 2, on beta: the only one there
until grep -q '"voters": \[[^]]*\b1\b' "$folder/alpha/run/merges.jsonl"; do sleep 0.1; done
tenths=$((($(date +%s%N) - begun) / 100000000))
echo "--- 2 commands, $((tenths / 10)).$((tenths % 10)) s from the first until something of beta's was merged"; echo
alpha isthmus status run
alpha isthmus stop run
until [ -s "$folder/alpha/run/over.json" ]; do sleep 0.2; done
