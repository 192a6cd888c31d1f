#!/bin/sh
# Build the Kubernetes control plane that the tests run, once, below the user's cache; no root, no service.
#
# Debian 12 is the last whose source package `kubernetes` is whole (with vendor/; later ones are cut to
# kubectl), so the sources, Go 1.19 and etcd come from there, whatever this machine runs.  It takes about
# 15 CPU minutes, 3 GB.  What is made already is not made again.
#
#   tests/engines/build_kubernetes.sh          then: $ISTHMUS_ENGINES_CACHE/kubernetes/bin
set -eu

cache=${ISTHMUS_ENGINES_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/isthmus-engines}/kubernetes
programs="kube-scheduler kube-controller-manager kube-apiserver"
mkdir -p "$cache/bin" "$cache/apt/lists/partial" "$cache/apt/archives/partial" "$cache/debs"

exec 9>"$cache/lock"
flock 9 # two builds at once would write the same files

missing=""
for program in etcd kubectl $programs; do
    [ -x "$cache/bin/$program" ] || missing="$missing $program"
done
if [ -z "$missing" ]; then
    echo "$cache/bin"
    exit 0
fi

for tool in apt-get dpkg-deb dpkg-source; do
    command -v "$tool" >/dev/null || {
        echo "build_kubernetes.sh needs $tool: it runs on Debian or Ubuntu with the package dpkg-dev" >&2
        exit 2
    }
done

# Debian 12's packages in lists of our own: this machine's apt is left alone.
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
cat >"$cache/apt/sources.list" <<END
deb [signed-by=$keyring] http://deb.debian.org/debian bookworm main
deb-src [signed-by=$keyring] http://deb.debian.org/debian bookworm main
END
apt() {
    apt-get -q -o Dir::Etc::SourceList="$cache/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::Lists="$cache/apt/lists" -o Dir::Cache="$cache/apt" -o APT::Sandbox::User="$(id -un)" "$@"
}
cd "$cache/debs"
apt update
apt download etcd-server kubernetes-client golang-1.19-go golang-1.19-src
for deb in *.deb; do
    dpkg-deb -x "$deb" "$cache/root"
done
cp "$cache/root/usr/bin/etcd" "$cache/root/usr/bin/kubectl" "$cache/bin/"

tree="$cache/go/src/k8s.io/kubernetes"
if [ ! -d "$tree" ]; then
    apt source --download-only kubernetes
    mkdir -p "$cache/go/src/k8s.io"
    rm -rf "$tree.part"
    dpkg-source -x kubernetes_*.dsc "$tree.part"
    mv "$tree.part" "$tree"
fi

export GOROOT="$cache/root/usr/lib/go-1.19" GOPATH="$cache/go" GOCACHE="$cache/gocache" GO111MODULE=off GOFLAGS="" CGO_ENABLED=0
export PATH="$GOROOT/bin:$PATH"
cd "$tree"

# The one generated file that the package leaves out, from the packages that ask for it.
if [ ! -s pkg/generated/openapi/zz_generated.openapi.go ]; then
    go build -o "$cache/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
    inputs=$(grep -rl --include='*.go' '^[[:space:]]*// *+k8s:openapi-gen=true' pkg vendor/k8s.io staging | xargs -n1 dirname |
        sed -e 's|^staging/src/|vendor/|' -e 's|^|k8s.io/kubernetes/|' | sort -u | paste -sd, -)
    "$cache/openapi-gen" --go-header-file hack/boilerplate/boilerplate.generatego.txt --input-dirs "$inputs" \
        --output-base "$GOPATH/src" --output-package k8s.io/kubernetes/pkg/generated/openapi \
        --output-file-base zz_generated.openapi --report-filename "$cache/openapi-violations.list" || true
    [ -s pkg/generated/openapi/zz_generated.openapi.go ]
fi

for program in $programs; do # Without the clouds, whose libraries are half of the work.
    [ -x "$cache/bin/$program" ] || go build -tags providerless -o "$cache/bin/$program" "k8s.io/kubernetes/cmd/$program"
done
echo "$cache/bin"
