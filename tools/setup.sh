#!/usr/bin/env bash
# Installs what is missing for a build and nothing else: Debian/Ubuntu packages, and libtorch in a local venv.
# usage: tools/setup.sh [cpu|full]
#   cpu   what a build and a training run on the CPU need (default)
#   full  also what the tests need: all of torch's own wheels, so that Python can import it, and the libraries compared with
# environment: PRIMUS_LIBTORCH=DIR an existing torch (include/, lib/) instead of the wheel; PYTHON=python3.12 the Python to use
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
kind=${1:-cpu}
log=build/setup.log
venv=.venv
python=${PYTHON:-python3}
ticker=

say() { printf 'set-up: %s\n' "$*"; }
fail() {
  printf 'set-up: %s\n' "$1" >&2
  shift
  if [ $# -gt 0 ]; then printf '  %s\n' "$@" >&2; fi
  exit 1
}
[ "$kind" = cpu ] || [ "$kind" = full ] || fail "unknown kind '$kind'" "usage: tools/setup.sh [cpu|full]"

stop_ticker() {
  if [ -n "$ticker" ]; then kill "$ticker" 2>/dev/null || true; wait "$ticker" 2>/dev/null || true; fi
  ticker=
}
trap stop_ticker EXIT

# Shows that a long step is alive: on a terminal the seconds count up in place, elsewhere a line every 30 s.
start_ticker() {
  local step=30 shape='set-up:   still at it, %d s\n'
  if [ -t 1 ]; then
    step=1
    shape='\r  %d s '
  fi
  (
    # The sleep must end with its ticker: it holds the output open, and a pipe behind this script would wait for it.
    trap 'kill "$!" 2>/dev/null' EXIT
    trap exit TERM
    for ((s = step; ; s += step)); do
      sleep "$step" &
      wait "$!"
      # shellcheck disable=SC2059
      printf "$shape" "$s"
    done
  ) 9>&- &
  ticker=$!
}

# logged WHAT COMMAND...: announces the step, runs it with its output in the log, gives its status.
logged() {
  local what=$1 status=0 start=$SECONDS
  shift
  say "$what"
  printf '\n== %s\n== %s\n' "$what" "$*" >>"$log"
  start_ticker
  "$@" >>"$log" 2>&1 </dev/null || status=$?
  stop_ticker
  if [ -t 1 ]; then printf '\r'; fi
  if [ $status -eq 0 ]; then say "  done in $((SECONDS - start)) s"; fi
  return $status
}

# failed WHAT ADVICE...: the end of the log and the likeliest reason.
failed() {
  local what=$1 last
  shift
  tail -n 15 "$log" | sed 's/^/  | /' >&2
  # Only the step that failed counts: the log of an earlier one may hold a network error that a retry mended.
  last=$(tac "$log" | sed '/^== /q')
  if grep -qE 'Temporary failure (in name resolution|resolving)|Could not (resolve|connect)|Unable to connect|NewConnectionError|Network is unreachable|Connection (refused|timed out)|Read timed out' <<<"$last"; then
    fail "$what failed: the network (or the package server) is out of reach" \
      "Check the connection and any proxy (http_proxy, https_proxy), then run the same command again: it goes on where it stopped." \
      "Whole log: $log"
  fi
  if grep -qE 'No space left on device|enough free space' <<<"$last"; then
    fail "$what failed: the disk is full" "Free some space, then run the same command again." "Whole log: $log"
  fi
  fail "$what failed" "$@" "Whole log: $log"
}

# Everything from here to the end of the script may write; two set-ups at once in one checkout would disturb each other.
begin_work() {
  if [ -n "${working:-}" ]; then return; fi
  working=yes
  if ! { mkdir -p build && : >>"$log"; } 2>/dev/null; then
    fail "cannot write in $PWD/build" "Run it as the owner of this checkout."
  fi
  exec 9>build/setup.lock
  if command -v flock >/dev/null && ! flock -n 9; then
    say "waiting for another set-up in this checkout"
    flock 9
  fi
  : >"$log"
}

# --- system packages ---------------------------------------------------------------------------------------------------

packages=(g++ cmake ninja-build ccache pkgconf python3 python3-venv ca-certificates
  libopenmpi-dev openmpi-bin libyaml-cpp-dev libcli11-dev libfmt-dev libspdlog-dev nlohmann-json3-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  libpcre2-dev libicu-dev libsentencepiece-dev zlib1g-dev libzstd-dev)
# Tests open pictures in a browser and turn them into PNG; where these are missing, those tests are skipped. Ubuntu has
# chromium as a snap only.
if [ "$kind" = full ]; then
  packages+=(librsvg2-bin)
  if grep -qs '^ID=debian' /etc/os-release; then packages+=(chromium); fi
fi

# A tool that somebody installed in another way is as good as its package.
present_without_package() {
  case $1 in
    g++ | cmake | ccache | pkgconf) command -v "$1" >/dev/null ;;
    ninja-build) command -v ninja >/dev/null ;;
    python3) command -v "$python" >/dev/null ;;
    python3-venv) "$python" -c 'import ensurepip, venv' 2>/dev/null ;;
    ca-certificates) [ -e /etc/ssl/certs/ca-certificates.crt ] || [ -e /etc/pki/tls/certs/ca-bundle.crt ] ;;
    # Without dpkg nobody can be asked about libraries; CMake names the one it does not find.
    lib* | nlohmann-json3-dev | zlib1g-dev) ! command -v dpkg-query >/dev/null ;;
    openmpi-bin) command -v mpirun >/dev/null ;;
    librsvg2-bin) command -v rsvg-convert >/dev/null ;;
    chromium) command -v chromium >/dev/null ;;
    *) return 1 ;;
  esac
}

list_missing() {
  local installed package
  installed=$'\n'$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null |
    sed -n 's/^installed //p' || true)$'\n'
  for package in "${packages[@]}"; do
    [[ $installed == *$'\n'"$package"$'\n'* ]] || present_without_package "$package" || echo "$package"
  done
}

install_packages() {
  local missing become=()
  mapfile -t missing < <(list_missing)
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || fail "missing: ${missing[*]} (Debian and Ubuntu's names)" \
    "Install them with this system's package manager, then run the same command again."
  local command="apt-get install -y --no-install-recommends ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    # A password can be asked for only where somebody can type it.
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      sudo -v || fail "sudo refused; these packages are missing: ${missing[*]}" "As root: apt-get update && $command"
      become=(sudo)
    else
      fail "these packages are missing, and this user can neither become root nor use sudo: ${missing[*]}" \
        "Ask an administrator to run:" "  apt-get update && $command" "then run the same command again."
    fi
  fi
  begin_work
  become+=(env DEBIAN_FRONTEND=noninteractive)
  local apt=("${become[@]}" apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=2 -o APT::Update::Error-Mode=any)
  if [ -n "$(dpkg --audit 2>/dev/null)" ]; then
    logged "finishing an interrupted package installation" "${become[@]}" dpkg --configure -a || failed "dpkg --configure -a"
  fi
  # An old list may name versions that the server no longer has, so a first failure is answered by a fresh list.
  local install=("${apt[@]}" install -y --no-install-recommends "${missing[@]}")
  if ! compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null || ! apt-cache show "${missing[@]}" >/dev/null 2>&1; then
    logged "fetching the list of packages" "${apt[@]}" update || failed "apt-get update"
    logged "installing ${#missing[@]} packages: ${missing[*]}" "${install[@]}" || failed "apt-get install" "By hand: $command"
  elif ! logged "installing ${#missing[@]} packages: ${missing[*]}" "${install[@]}"; then
    logged "fetching a fresh list of packages" "${apt[@]}" update || failed "apt-get update"
    logged "installing ${#missing[@]} packages" "${install[@]}" || failed "apt-get install" "By hand: $command"
  fi
  mapfile -t missing < <(list_missing)
  [ ${#missing[@]} -eq 0 ] || fail "still missing after the installation: ${missing[*]}" "Whole log: $log"
}

# --- Python packages ---------------------------------------------------------------------------------------------------

free_mb() { df -Pm "$1" | awk 'NR == 2 { print $4 }'; }

# The requirements that a set stands for, and the Python that runs them: what a stamp must say to be believed.
requirements_of() {
  case $1 in
    cpu) echo tools/requirements-cpu.txt ;;
    full) echo tools/requirements-cpu.txt tools/requirements-full.txt ;;
    comparisons) echo tools/requirements-full.txt ;;
    cuda) echo tools/requirements-cuda.txt ;;
  esac
}
stamp_text() {
  local files
  read -ra files <<<"$(requirements_of "$1")"
  "$venv/bin/python" -V && cat "${files[@]}"
}
is_stamped() {
  local stamp=$venv/.installed-$1
  [ -e "$stamp" ] && [ "$(stamp_text "$1" 2>/dev/null)" = "$(cat "$stamp")" ] || return 1
  [ "$1" = comparisons ] || [ "$1" = cuda ] || compgen -G "$venv/lib/python3*/site-packages/torch/lib/libtorch_cpu.so" >/dev/null
}

check_python_version() {
  local version
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || fail "'$python' does not run"
  case $version in
    3.10 | 3.11 | 3.12 | 3.13 | 3.14) ;;
    *) fail "$python is Python $version; torch 2.11.0 has wheels for Python 3.10 to 3.14" \
      "Name another one: make PYTHON=python3.12 ..., or give a torch of your own: PRIMUS_LIBTORCH=DIR" ;;
  esac
}

# check_disk MEGABYTES: the wheels, unpacked and (for a while) packed, must fit beside the checkout.
check_disk() {
  local have used=0 cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}
  have=$(free_mb .)
  if [ -d "$venv" ]; then used=$(du -sm "$venv" | cut -f1); fi
  [ $((have + used)) -ge "$1" ] || fail "not enough disk space in $PWD: $1 MB needed, $((have + used)) MB free" \
    "Free some space, or give a torch that is installed elsewhere: PRIMUS_LIBTORCH=DIR"
  while [ ! -d "$cache" ]; do cache=$(dirname "$cache"); done
  # pip keeps a second copy of every wheel in its cache: good for the next clone, not worth a full disk.
  if [ "$(free_mb "$cache")" -lt $(($1 * 2)) ] || [ ! -w "$cache" ]; then pip_options+=(--no-cache-dir); fi
}

# install_python_set NAME MEGABYTES PIP_ARGUMENTS...
install_python_set() {
  local name=$1 megabytes=$2 pip_options=(--disable-pip-version-check --no-input --progress-bar off) file
  shift 2
  if is_stamped "$name" || { [ "$name" = cpu ] && is_stamped full; }; then return; fi
  begin_work
  check_disk "$megabytes"
  if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    check_python_version
    logged "making a Python environment in $venv" "$python" -m venv --clear "$venv" || failed "$python -m venv" \
      "Try: apt-get install python3-venv, or name another Python: make PYTHON=python3.12 ..."
  else
    # Here some earlier set-up ended before its stamp, or the requirements have changed.
    logged "checking $venv" "$venv/bin/python" tools/venv_repair.py || failed "the check of $venv" "Try: rm -rf $venv"
  fi
  # pip unpacks in TMPDIR, and /tmp may be a small one in memory; here the space has been checked.
  rm -rf build/pip-tmp && mkdir -p build/pip-tmp
  for file in $(requirements_of "$name"); do pip_options+=(-r "$file"); done
  if ! TMPDIR=$PWD/build/pip-tmp logged "installing $name: $(requirements_of "$name" | xargs -n1 sed -n 's/^\([a-z].*\)==.*/\1/p' | xargs)" \
    "$venv/bin/python" -m pip install "${pip_options[@]}" "$@"; then
    if tail -n 3 "$log" | grep -q 'No matching distribution found'; then
      failed "pip install" "There is no wheel of that package for $("$venv/bin/python" -V) on $(uname -m)." \
        "Name another Python (rm -rf $venv; make PYTHON=python3.12 ...), or give a torch of your own: PRIMUS_LIBTORCH=DIR"
    fi
    failed "pip install" "Run the same command again: what has been installed is kept."
  fi
  rm -rf build/pip-tmp
  case $name in
    cpu) logged "loading libtorch once" "$venv/bin/python" -c 'import ctypes, glob, sys
ctypes.CDLL(glob.glob(sys.prefix + "/lib/python3*/site-packages/torch/lib/libtorch_cpu.so")[0])' || failed "loading libtorch_cpu.so" ;;
    full) logged "importing torch once" "$venv/bin/python" -c 'import torch, transformers' || failed "import torch" ;;
  esac
  # Last, so that an interrupted set-up is taken up again.
  stamp_text "$name" >"$venv/.installed-$name"
}

check_own_libtorch() {
  local missing=() path
  for path in include/ATen/ATen.h include/c10/core/Allocator.h lib/libtorch_cpu.so lib/libc10.so; do
    [ -e "$PRIMUS_LIBTORCH/$path" ] || missing+=("$path")
  done
  [ ${#missing[@]} -eq 0 ] || fail "PRIMUS_LIBTORCH=$PRIMUS_LIBTORCH is not a torch: it lacks ${missing[*]}" \
    "Give the folder that holds include/ and lib/, for instance .../site-packages/torch"
}

begin=$(date +%s%N)
install_packages
if [ -n "${PRIMUS_LIBTORCH:-}" ]; then
  check_own_libtorch
  if [ "$kind" = full ]; then install_python_set comparisons 2500; fi
elif [ "$kind" = full ]; then
  install_python_set full 9000
else
  install_python_set cpu 3000 --no-deps
fi
cuda=
if command -v nvcc >/dev/null || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
  # Its dependencies are those of a Python library that is not used; torch's CUDA libraries come with the full set only.
  if [ "$kind" = full ] || [ -n "${PRIMUS_LIBTORCH:-}" ]; then install_python_set cuda 100 --no-deps; fi
else
  cuda="; no nvcc: the CUDA kernels are left out"
fi
elapsed=$((($(date +%s%N) - begin) / 100000000))
say "ready ($kind), $((elapsed / 10)).$((elapsed % 10)) s$cuda"
