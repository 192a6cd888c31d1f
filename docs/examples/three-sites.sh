#!/usr/bin/env bash
# Three institutions train one model, each on data that stays with it: three network namespaces stand for a home and two
# sites that share nothing but a network, of which one port of the home is open.
# Needs root. Say where `isthmus` is if it is not on the path: PATH=$PWD/.venv/bin:$PATH docs/examples/three-sites.sh
set -euo pipefail
folder=$(mktemp -d) here=$$ tokens=${TOKENS:-400000}
on() { (cd "$folder/$1" && XDG_STATE_HOME=$PWD/state XDG_CACHE_HOME=$PWD/cache exec ip netns exec "$1-$here" "${@:2}"); }
pids() { for each in home north south; do ip netns pids "$each-$here"; done; }
end() {
    # A daemon that is told twice to end, ends its runs at once.
    until [ -z "$(pids)" ]; do pids | xargs -r kill 2>/dev/null || true; sleep 1; done
    for each in home north south bridge; do ip netns delete "$each-$here"; done
    rm -rf "$folder"
}
for each in bridge home north south; do ip netns add "$each-$here"; done
trap end EXIT
ip -n "bridge-$here" link add br0 type bridge
ip -n "bridge-$here" link set br0 up
number=0
for each in home north south; do
    number=$((number + 1))
    mkdir "$folder/$each"
    ip link add name "p$number" netns "bridge-$here" type veth peer name eth0 netns "$each-$here"
    ip -n "bridge-$here" link set "p$number" master br0 up
    ip -n "$each-$here" address add "10.179.0.$number/24" dev eth0
    ip -n "$each-$here" link set lo up; ip -n "$each-$here" link set eth0 up
done
# The data of each: parts of Python's library. The home evaluates on others.
library=$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
mkdir "$folder"/{home,north,south}/data
cp "$library"/*.py "$folder/home/data"; cp "$library"/asyncio/*.py "$folder/north/data"; cp "$library"/email/*.py "$folder/south/data"

# The home: a key, one open port, a run without learners of its own, and an invitation for each site.
on home isthmus keygen home
cat >"$folder/home/machine.toml" <<'END'
[keys]
secret = "home.key"
END
cat >"$folder/home/home.toml" <<END
[[machine]]
name = "home"
address = "tcp://10.179.0.1:7400"
public_key = "home.pub"
[keys]
secret = "home.key"
[run]
learners = 0
tokens = $tokens
[program]
site_weight = "equal"
[task]
data = ["data"]
END
on home isthmus daemon --name home --listen tcp://10.179.0.1:7400 --ports 7400-7400 --config machine.toml \
    --run home.toml --until-over &
home=$!
for site in north south; do
    until on home isthmus invite $site --cluster home.toml --owner "$site" 2>"$folder/error"; do
        sleep 1
    done
    mv "$folder/home/$site.invite" "$folder/$site"                      # By mail, or as you like.
done

# Each site: one command. What it trains on stays there, and so do the messages of errors.
cat >"$folder/south/machine.toml" <<'END'
[runs]
data = ["data"]
keep_own = true
END
on north isthmus join --invite north.invite --data data --until-over &
on south isthmus join --invite south.invite --config machine.toml --until-over &
wait $home

echo; echo "--- what the home sees"
on home isthmus status runs/home
echo; echo "--- what crossed the border of each site, by kind"
on home isthmus borders runs/home
