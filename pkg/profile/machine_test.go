package profile

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// machine runs a shipped profile's scripts with real bash below a folder instead of /, with stand-ins for what a machine would do.
type machine struct {
	t    *testing.T
	root string
	in   Inputs
	// profile is the name of the shipped profile whose scripts run.
	profile string
}

// absolute are the paths that scripts touch; those within arguments that stand-ins only log may stay or move, it makes no difference.
var absolute = regexp.MustCompile(`(^|[^A-Za-z0-9_}])/(etc|var/lib|run|sys/fs|proc|opt|usr/local|usr/lib|usr/libexec)/`)

// outside are paths that absolute does not move, and that scripts write to.
var outside = regexp.MustCompile(`(^|[\s="'(])/(etc|var|opt|usr/local|run)\b[^\s]*`)

const standIns = `
log() { echo "$*" >>"$ROOT/calls"; }
echo "${0##*/} $*" >>"$ROOT/argv"
state="$ROOT/state"
case ${0##*/} in
systemctl)
  log "systemctl $*"
  verb= units=() now=false
  for word in "$@"; do
    case $word in
    --now) now=true ;;
    -*) ;;
    *) if [[ -z $verb ]]; then verb=$word; else units+=("${word%.service}"); fi ;;
    esac
  done
  for unit in "${units[@]}"; do
    mkdir -p "$state/$unit"
    case $verb in
    cat) [[ -e $ROOT/etc/systemd/system/$unit.service || -e $ROOT/usr/lib/systemd/system/$unit.service || -e $ROOT/usr/local/lib/systemd/system/$unit.service ]] ;;
    enable) touch "$state/$unit/enabled"; if $now; then touch "$state/$unit/active"; fi ;;
    disable) rm -f "$state/$unit/enabled"; if $now; then rm -f "$state/$unit/active"; fi ;;
    start | restart) touch "$state/$unit/active" ;;
    stop) rm -f "$state/$unit/active" ;;
    is-active) [[ -e $state/$unit/active ]] ;;
    is-enabled) [[ -e $state/$unit/enabled ]] ;;
    reset-failed) ;;
    *) exit 64 ;;
    esac || exit 3
  done
  ;;
containerd) printf '%s\n' 'version = 2' '  SystemdCgroup = false' '  bin_dir = "/usr/lib/cni"' '  sandbox_image = "registry.k8s.io/pause:3.6"' ;;
ctr)
  log "ctr $*"
  case "$*" in
  *"k8s.io containers list"*) cat "$ROOT/containers" 2>/dev/null ;;
  *"k8s.io tasks list"*) cat "$ROOT/containers" 2>/dev/null ;;
  *"k8s.io containers info"*) echo "{\"path\": \"/var$ROOT/run/netns/cni-0a1b\"}" ;;
  *"k8s.io containers delete"*) sed -i "/^${*: -1}$/d" "$ROOT/containers" ;;
  *"namespaces list"*) echo k8s.io; cat "$ROOT/namespaces" 2>/dev/null ;;
  *"tasks list"*) echo somebody ;;
  esac
  exit 0
  ;;
ip)
  log "ip $*"
  case "$*" in
  *"to 10.0.0.11" | *"to 2001:db8::11") echo "2: eth0 inet" ;;
  *"netns delete"*) rm -f "$ROOT/run/netns/${*: -1}" ;;
  esac
  ;;
dpkg-query) printf '%s\n' "$(cat "$ROOT/conffiles" 2>/dev/null)" ;;
modprobe | iptables | runc) log "${0##*/} $*" ;;
apt-get)
  log "apt-get $*"
  if [[ -s $ROOT/apt-says ]]; then head -n 1 "$ROOT/apt-says" >&2; sed -i 1d "$ROOT/apt-says"; exit 100; fi
  ;;
dpkg | restorecon) log "${0##*/} $*" ;;
dnf)
  log "dnf $*"
  if [[ -s $ROOT/dnf-says ]]; then code=$(head -n 1 "$ROOT/dnf-says"); sed -i 1d "$ROOT/dnf-says"; echo "${code#* }" >&2; exit "${code%% *}"; fi
  ;;
kubeadm)
  log "kubeadm $*"
  case "$*" in
  "version "*) echo v1.36.1 ;;
  "join --config "*) cp "$3" "$ROOT/kubeadm-saw" ;;
  *) exit 64 ;;
  esac
  ;;
tar)
  log "tar $*"
  mkdir -p "$ROOT/usr/local/bin" "$ROOT/usr/local/lib/systemd/system"
  printf '#!/bin/sh\necho rke2 version\n' >"$ROOT/usr/local/bin/rke2"
  chmod 0755 "$ROOT/usr/local/bin/rke2"
  touch "$ROOT/usr/local/lib/systemd/system/rke2-agent.service" "$ROOT/usr/local/lib/systemd/system/rke2-server.service"
  ;;
curl) log "curl $*"; while [[ $1 != --output ]]; do shift; done; cp "$ROOT/download" "$2" ;;
sleep) ;;
esac
`

// newMachine is a Debian machine with containerd and a kubelet, for the profile of that name.
func newMachine(t *testing.T, profile string) *machine {
	t.Helper()
	m := &machine{t: t, root: t.TempDir(), in: full(), profile: profile}
	m.in.ClusterCA = []byte("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
	m.in.Vars, m.in.Secrets = map[string]string{}, nil
	m.write("bin/stand-in", "#!/bin/bash\n"+standIns, 0o755)
	for _, name := range []string{"systemctl", "containerd", "ctr", "ip", "dpkg-query", "dpkg", "modprobe", "iptables", "runc", "apt-get", "dnf", "kubeadm", "tar", "restorecon", "curl", "sleep"} {
		if err := os.Symlink("stand-in", filepath.Join(m.root, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"etc/systemd/system", "var/lib", "run/netns", "proc/sys/net/ipv4", "proc/self", "sys/fs/cgroup", "opt", "usr/local/bin", "usr/lib/systemd/system", "usr/lib/cni"} {
		if err := os.MkdirAll(filepath.Join(m.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.write("usr/local/bin/kubelet", "#!/bin/sh\necho Kubernetes v1.35.4\n", 0o755)
	m.write("usr/lib/cni/loopback", "", 0o755)
	m.write("etc/os-release", "NAME=\"Debian GNU/Linux\"\nID=debian\n", 0o644)
	m.write("usr/lib/systemd/system/containerd.service", "", 0o644)
	m.write("proc/sys/net/ipv4/ip_forward", "0\n", 0o644)
	m.write("proc/self/cgroup", "0::/system.slice/ssh.service\n", 0o644)
	m.write("proc/self/mounts", "", 0o644)
	m.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n", 0o644)
	m.write("run/netns/cni-0a1b", "", 0o644)
	return m
}

func (m *machine) write(name, text string, mode os.FileMode) {
	m.t.Helper()
	path := filepath.Join(m.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) read(name string) string {
	raw, _ := os.ReadFile(filepath.Join(m.root, name))
	return string(raw)
}

func (m *machine) exists(name string) bool {
	_, err := os.Lstat(filepath.Join(m.root, name))
	return err == nil
}

// systems are what /etc/os-release says, by system.
var systems = map[string]string{
	"debian": "ID=debian\n", "ubuntu": "ID=ubuntu\nID_LIKE=debian\n", "raspbian": "ID=raspbian\nID_LIKE=debian\n",
	"rhel": "ID=\"rhel\"\nID_LIKE=\"fedora\"\n", "rocky": "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", "stream": "ID=\"centos\"\nID_LIKE=\"rhel fedora\"\n",
	"alpine": "ID=alpine\n",
}

// run runs a phase of the shipped profile and returns its exit code and output.
func (m *machine) run(phase Phase) (int, string) {
	m.t.Helper()
	revision := RevisionOf(examples(m.t)[m.profile])
	rendered, err := Render(revision, phase, m.in)
	if err != nil {
		m.t.Fatal(err)
	}
	// Scripts come over a wire whose shell has no HOME and little PATH; and they trace nothing.
	body := absolute.ReplaceAllString(rendered.Body, "${1}"+m.root+"/${2}/")
	if found := outside.FindString(comment.ReplaceAllString(body, "")); found != "" {
		m.t.Fatalf("%s would touch this computer: %q; end the names of folders in a slash", phase, found)
	}
	cmd := exec.CommandContext(m.t.Context(), "bash", "-c", body)
	cmd.Env = []string{"PATH=" + m.root + "/bin:/usr/bin:/bin", "ROOT=" + m.root, "TMPDIR=" + m.root}
	for _, name := range slices.Sorted(maps.Keys(rendered.Env)) {
		cmd.Env = append(cmd.Env, name+"="+rendered.Env[name])
	}
	out, _ := cmd.CombinedOutput()
	secrets := []string{"0123456789abcdef"}
	for _, value := range m.in.Secrets {
		secrets = append(secrets, string(value))
	}
	for _, secret := range secrets {
		if strings.Contains(string(out), secret) {
			m.t.Errorf("%s prints a secret:\n%s", phase, out)
		}
		if argv := m.read("argv"); strings.Contains(argv, secret) {
			m.t.Errorf("%s shows a secret on a command line, which everybody on the machine can read:\n%s", phase, argv)
		}
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

func (m *machine) must(phase Phase) {
	m.t.Helper()
	if code, out := m.run(phase); code != 0 {
		m.t.Fatalf("%s: exit %d\n%s", phase, code, out)
	}
}

// calls are the stand-ins' calls since the last time.
func (m *machine) calls() string {
	calls := m.read("calls")
	m.write("calls", "", 0o644)
	return calls
}

// register is what a kubelet leaves behind once it has its certificate.
func (m *machine) register(node, endpoint string, ca []byte, left time.Duration) {
	m.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		m.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-400 * 24 * time.Hour), NotAfter: time.Now().Add(left),
		Subject: pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + node},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		m.t.Fatal(err)
	}
	m.write("var/lib/kubelet/pki/kubelet-client-current.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})), 0o600)
	m.write("etc/kubernetes/kubelet.conf", fmt.Sprintf("apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: %s\n    server: %s\n  name: default-cluster\n",
		base64.StdEncoding.EncodeToString(ca), endpoint), 0o600)
}
