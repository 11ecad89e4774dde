package v1beta1_test

import (
	"encoding/json"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// The smallest objects that users may write.
const (
	minimalHost = `
apiVersion: karpenter.dklesev.github.io/v1beta1
kind: SSHHost
metadata: {namespace: default, generateName: host-}
spec:
  address: 192.0.2.11
  sshKeySecretRef: {name: key}
  capacity: {cpu: "4", memory: 8Gi}
`
	minimalClass = `
apiVersion: karpenter.dklesev.github.io/v1beta1
kind: SSHNodeClass
metadata: {generateName: class-}
spec:
  joinProfileRef: {name: profile}
`
	minimalProfile = `
apiVersion: karpenter.dklesev.github.io/v1beta1
kind: SSHJoinProfile
metadata: {generateName: profile-}
spec:
  scripts: {install: "true", join: "true", leave: "true"}
`
)

// A rule of the API, shown by one object that is accepted and one that is refused.
type rule struct {
	name string
	// base is the object that the patches start from.
	base string
	// existing, when set, is merged into base and the result created; accepted and refused are then updates of it.
	existing string
	// accepted and refused are JSON merge patches, written as YAML.
	accepted, refused string
	// message is the part of the refusal that tells a person what to do.
	message string
}

// window is an item of maintenanceWindows, with the comma after it, by its schedule, and its duration with what follows that.
func window(schedule, duration string) string {
	return `{schedule: "` + schedule + `", duration: ` + duration + `},`
}

// jump is an item of jumpHosts, with the comma after it, by its address and what follows that.
func jump(address string) string {
	return `{sshKeySecretRef: {name: k}, address: ` + address + `},`
}

var long = func(n int) string { return strings.Repeat("x", n) }

var hostRules = []rule{
	{name: "address is required", base: minimalHost,
		accepted: `spec: {address: host.example}`,
		refused:  `spec: {address: null}`, message: `spec.address: Required value`},
	{name: "address is not empty", base: minimalHost,
		accepted: `spec: {address: "::1"}`,
		refused:  `spec: {address: ""}`, message: `spec.address: Invalid value: "": spec.address in body should be at least 1 chars long`},
	{name: "address has 253 characters at most", base: minimalHost,
		accepted: `spec: {address: ` + long(253) + `}`,
		refused:  `spec: {address: ` + long(254) + `}`, message: `spec.address: Too long: may not be more than 253 bytes`},
	{name: "section 2 #36: address never changes", base: minimalHost, existing: `{}`,
		accepted: `spec: {port: 2222}`,
		refused:  `spec: {address: 192.0.2.12}`, message: `address is immutable: delete this SSHHost and create one for the new address`},
	{name: "section 2 #36: removing spec is no way to change the address", base: minimalHost, existing: `{}`,
		accepted: `metadata: {labels: {a: b}}`,
		refused:  `spec: null`, message: `spec cannot be removed: delete this SSHHost and create one for the new machine`},
	{name: "port is at least 1", base: minimalHost,
		accepted: `spec: {port: 1}`,
		refused:  `spec: {port: 0}`, message: `spec.port: Invalid value: 0: spec.port in body should be greater than or equal to 1`},
	{name: "port is at most 65535", base: minimalHost,
		accepted: `spec: {port: 65535}`,
		refused:  `spec: {port: 65536}`, message: `spec.port: Invalid value: 65536: spec.port in body should be less than or equal to 65535`},
	{name: "user has 32 characters at most", base: minimalHost,
		accepted: `spec: {user: ` + long(32) + `}`,
		refused:  `spec: {user: ` + long(33) + `}`, message: `spec.user: Too long: may not be more than 32 bytes`},
	{name: "sshKeySecretRef is required", base: minimalHost,
		accepted: `spec: {sshKeySecretRef: {name: other}}`,
		refused:  `spec: {sshKeySecretRef: null}`, message: `spec.sshKeySecretRef: Required value`},
	{name: "sshKeySecretRef names a Secret", base: minimalHost,
		accepted: `spec: {sshKeySecretRef: {name: k}}`,
		refused:  `spec: {sshKeySecretRef: {name: null}}`, message: `sshKeySecretRef.name must name a Secret in the host's namespace`},
	{name: "nodeAddress is an IP address", base: minimalHost,
		accepted: `spec: {nodeAddress: "2001:db8::11"}`,
		refused:  `spec: {nodeAddress: node.example}`, message: `nodeAddress must be an IPv4 or IPv6 address`},
	{name: "nodeAddress has 45 characters at most", base: minimalHost,
		accepted: `spec: {nodeAddress: "2001:0db8:0000:0000:0000:0000:0000:0011"}`,
		refused:  `spec: {nodeAddress: ` + long(46) + `}`, message: `spec.nodeAddress: Too long: may not be more than 45 bytes`},
	{name: "capacity is required", base: minimalHost,
		accepted: `spec: {capacity: {cpu: "0", memory: "-1"}}`,
		refused:  `spec: {capacity: null}`, message: `spec.capacity: Required value`},
	{name: "capacity gives cpu and memory", base: minimalHost,
		accepted: `spec: {capacity: {pods: "20", example.com/gpu: "1"}}`,
		refused:  `spec: {capacity: {memory: null}}`, message: `capacity must give both cpu and memory`},
	{name: "capacity holds quantities", base: minimalHost,
		accepted: `spec: {capacity: {cpu: 500m, memory: 1.5Gi}}`,
		refused:  `spec: {capacity: {cpu: four}}`, message: `spec.capacity.cpu: Invalid value: "four"`},
	{name: "section 2 #35: Verified needs a signer", base: minimalHost,
		accepted: `spec: {execMode: Verified, trustedSigners: [ssh-ed25519 AAAA ops]}`,
		refused:  `spec: {execMode: Verified, trustedSigners: []}`, message: `execMode Verified needs at least one entry in trustedSigners`},
	{name: "execMode is Raw or Verified", base: minimalHost,
		accepted: `spec: {execMode: Raw}`,
		refused:  `spec: {execMode: raw}`, message: `spec.execMode: Unsupported value: "raw": supported values: "Raw", "Verified"`},
	{name: "trustedSigners are 16 at most", base: minimalHost,
		accepted: `spec: {trustedSigners: [` + strings.Repeat("k,", 16) + `]}`,
		refused:  `spec: {trustedSigners: [` + strings.Repeat("k,", 17) + `]}`, message: `spec.trustedSigners: Too many: 17: must have at most 16 items`},
	{name: "shimCommand has 1024 characters at most", base: minimalHost,
		accepted: `spec: {shimCommand: ` + long(1024) + `}`,
		refused:  `spec: {shimCommand: ` + long(1025) + `}`, message: `spec.shimCommand: Too long: may not be more than 1024 bytes`},
	{name: "maintenanceWindows are 8 at most", base: minimalHost,
		accepted: `spec: {maintenanceWindows: [` + strings.Repeat(window("0 2 * * SAT", "2h"), 8) + `]}`,
		refused:  `spec: {maintenanceWindows: [` + strings.Repeat(window("0 2 * * SAT", "2h"), 9) + `]}`, message: `spec.maintenanceWindows: Too many: 9: must have at most 8 items`},
	{name: "issue 5 #7: a window's schedule has five fields: not six", base: minimalHost,
		accepted: `spec: {maintenanceWindows: [` + window("*/15 0-6,22 1,15 JAN-MAR ?", "1m") + `]}`,
		refused:  `spec: {maintenanceWindows: [` + window("0 0 2 * * *", "1h") + `]}`, message: `spec.maintenanceWindows[0].schedule: Invalid value`},
	{name: "issue 5 #7: a window's schedule has five fields: no words", base: minimalHost,
		accepted: `spec: {maintenanceWindows: [` + window("0 2 * * *", "168h") + `]}`,
		refused:  `spec: {maintenanceWindows: [` + window("@daily", "1h") + `]}`, message: `spec.maintenanceWindows[0].schedule: Invalid value`},
	{name: "a window's schedule has 128 characters at most", base: minimalHost,
		accepted: `spec: {maintenanceWindows: [` + window("0 2 * * "+strings.Repeat("1", 120), "1h") + `]}`,
		refused:  `spec: {maintenanceWindows: [` + window("0 2 * * "+strings.Repeat("1", 121), "1h") + `]}`, message: `spec.maintenanceWindows[0].schedule: Too long`},
	{name: "a window's schedule is required", base: minimalHost,
		accepted: `spec: {maintenanceWindows: [` + window("0 2 * * *", "1h") + `]}`,
		refused:  `spec: {maintenanceWindows: [{duration: 1h}]}`, message: `spec.maintenanceWindows[0].schedule: Required value`},
	{name: "a window's duration is required", base: minimalHost,
		accepted: `spec: {maintenanceWindows: [` + window("0 2 * * *", "1h") + `]}`,
		refused:  `spec: {maintenanceWindows: [{schedule: 0 2 * * *}]}`, message: `spec.maintenanceWindows[0].duration: Required value`},
	{name: "a window's duration is a duration", base: minimalHost,
		accepted: `spec: {maintenanceWindows: [` + window("0 2 * * *", "2h30m") + `]}`,
		refused:  `spec: {maintenanceWindows: [` + window("0 2 * * *", "1.5h") + `]}`, message: `spec.maintenanceWindows[0].duration: Invalid value: "1.5h"`},
	{name: "a window's duration is a minute at least", base: minimalHost,
		accepted: `spec: {maintenanceWindows: [` + window("0 2 * * *", "60s") + `]}`,
		refused:  `spec: {maintenanceWindows: [` + window("0 2 * * *", "59s") + `]}`, message: `duration must be 1m to 168h`},
	{name: "a window's duration is a week at most", base: minimalHost,
		accepted: `spec: {maintenanceWindows: [` + window("0 2 * * *", "168h") + `]}`,
		refused:  `spec: {maintenanceWindows: [` + window("0 2 * * *", "168h1s") + `]}`, message: `duration must be 1m to 168h`},
	{name: "a window's duration has 16 characters at most", base: minimalHost,
		accepted: `spec: {maintenanceWindows: [` + window("0 2 * * *", "00000000000002h") + `]}`,
		refused:  `spec: {maintenanceWindows: [` + window("0 2 * * *", "0000000000000002h") + `]}`, message: `spec.maintenanceWindows[0].duration: Too long`},
	{name: "a window's timeZone is the name of one", base: minimalHost,
		accepted: `spec: {maintenanceWindows: [` + window("0 2 * * *", "1h, timeZone: America/Argentina/Buenos_Aires") + `]}`,
		refused:  `spec: {maintenanceWindows: [` + window("0 2 * * *", "1h, timeZone: ../UTC") + `]}`, message: `spec.maintenanceWindows[0].timeZone: Invalid value: "../UTC"`},
	{name: "a window's timeZone has 64 characters at most", base: minimalHost,
		accepted: `spec: {maintenanceWindows: [` + window("0 2 * * *", "1h, timeZone: "+long(64)) + `]}`,
		refused:  `spec: {maintenanceWindows: [` + window("0 2 * * *", "1h, timeZone: "+long(65)) + `]}`, message: `spec.maintenanceWindows[0].timeZone: Too long`},
	{name: "jumpHosts are 4 at most", base: minimalHost,
		accepted: `spec: {jumpHosts: [` + jump("a") + jump("b") + jump("c") + jump("d") + `]}`,
		refused:  `spec: {jumpHosts: [` + jump("a") + jump("b") + jump("c") + jump("d") + jump("e") + `]}`, message: `spec.jumpHosts: Too many: 5: must have at most 4 items`},
	{name: "issue 5 #6: jumpHosts name each server once", base: minimalHost,
		accepted: `spec: {jumpHosts: [` + jump("a") + jump("a, port: 2222") + `]}`,
		refused:  `spec: {jumpHosts: [` + jump("a") + jump("b") + jump("a, port: 22") + `]}`, message: `jumpHosts must name each SSH server once`},
	{name: "issue 5 #6: a machine is not its own jump host", base: minimalHost,
		accepted: `spec: {jumpHosts: [` + jump("192.0.2.11, port: 2222") + `]}`,
		refused:  `spec: {jumpHosts: [` + jump("192.0.2.11") + `]}`, message: `a machine cannot be its own jump host`},
	{name: "jumpHosts may change", base: minimalHost, existing: `spec: {jumpHosts: [` + jump("a") + `]}`,
		accepted: `spec: {jumpHosts: [` + jump("b") + `]}`,
		refused:  `spec: {jumpHosts: [` + jump("b") + jump("b") + `]}`, message: `jumpHosts must name each SSH server once`},
	{name: "a jump host's address is required", base: minimalHost,
		accepted: `spec: {jumpHosts: [` + jump(`"fd00::1"`) + `]}`,
		refused:  `spec: {jumpHosts: [{sshKeySecretRef: {name: k}}]}`, message: `spec.jumpHosts[0].address: Required value`},
	{name: "a jump host's address is not empty", base: minimalHost,
		accepted: `spec: {jumpHosts: [` + jump("jump.example") + `]}`,
		refused:  `spec: {jumpHosts: [` + jump(`""`) + `]}`, message: `spec.jumpHosts[0].address: Invalid value: ""`},
	{name: "a jump host's address has 253 characters at most", base: minimalHost,
		accepted: `spec: {jumpHosts: [` + jump(long(253)) + `]}`,
		refused:  `spec: {jumpHosts: [` + jump(long(254)) + `]}`, message: `spec.jumpHosts[0].address: Too long: may not be more than 253 bytes`},
	{name: "a jump host's port is at least 1", base: minimalHost,
		accepted: `spec: {jumpHosts: [` + jump("a, port: 1") + `]}`,
		refused:  `spec: {jumpHosts: [` + jump("a, port: 0") + `]}`, message: `spec.jumpHosts[0].port: Invalid value: 0`},
	{name: "a jump host's port is at most 65535", base: minimalHost,
		accepted: `spec: {jumpHosts: [` + jump("a, port: 65535") + `]}`,
		refused:  `spec: {jumpHosts: [` + jump("a, port: 65536") + `]}`, message: `spec.jumpHosts[0].port: Invalid value: 65536`},
	{name: "a jump host's user has 32 characters at most", base: minimalHost,
		accepted: `spec: {jumpHosts: [` + jump("a, user: "+long(32)) + `]}`,
		refused:  `spec: {jumpHosts: [` + jump("a, user: "+long(33)) + `]}`, message: `spec.jumpHosts[0].user: Too long: may not be more than 32 bytes`},
	{name: "a jump host's sshKeySecretRef is required", base: minimalHost,
		accepted: `spec: {jumpHosts: [` + jump("a") + `]}`,
		refused:  `spec: {jumpHosts: [{address: a}]}`, message: `spec.jumpHosts[0].sshKeySecretRef: Required value`},
	{name: "a jump host's sshKeySecretRef names a Secret", base: minimalHost,
		accepted: `spec: {jumpHosts: [` + jump("a") + `]}`,
		refused:  `spec: {jumpHosts: [{address: a, sshKeySecretRef: {}}]}`, message: `sshKeySecretRef.name of a jump host must name a Secret in the SSHHost's namespace`},
}

var classRules = []rule{
	{name: "instance is a DNS label", base: minimalClass,
		accepted: `spec: {instance: seg-a}`,
		refused:  `spec: {instance: Seg_A}`, message: `spec.instance: Invalid value: "Seg_A": spec.instance in body should match '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'`},
	{name: "instance has 40 characters at most", base: minimalClass,
		accepted: `spec: {instance: ` + long(40) + `}`,
		refused:  `spec: {instance: ` + long(41) + `}`, message: `spec.instance: Too long: may not be more than 40 bytes`},
	{name: "instance is not empty", base: minimalClass,
		accepted: `spec: {instance: x}`,
		refused:  `spec: {instance: ""}`, message: `spec.instance in body should be at least 1 chars long`},
	{name: "C1: instance never changes", base: minimalClass, existing: `spec: {instance: seg-a}`,
		accepted: `spec: {zone: z}`,
		refused:  `spec: {instance: seg-b}`, message: `instance is immutable: create a class for the other instance`},
	{name: "C1: removing instance is no way to change it", base: minimalClass, existing: `spec: {instance: seg-a}`,
		accepted: `spec: {zone: z}`,
		refused:  `spec: {instance: null}`, message: `instance is immutable`},
	{name: "C1: removing spec is no way to change instance", base: minimalClass, existing: `spec: {instance: seg-a}`,
		accepted: `metadata: {labels: {a: b}}`,
		refused:  `spec: null`, message: `instance is immutable`},
	{name: "spec of the default instance cannot be removed either", base: minimalClass, existing: `{}`,
		accepted: `spec: {instance: null}`,
		refused:  `spec: null`, message: `spec.joinProfileRef: Required value: name the SSHJoinProfile`},
	{name: "joinProfileRef is required", base: minimalClass,
		accepted: `spec: {joinProfileRef: {name: other}}`,
		refused:  `spec: {joinProfileRef: null}`, message: `spec.joinProfileRef: Required value: name the SSHJoinProfile`},
	{name: "joinProfileRef names a profile", base: minimalClass,
		accepted: `spec: {joinProfileRef: {name: p}}`,
		refused:  `spec: {joinProfileRef: {name: null}}`, message: `joinProfileRef.name must name an SSHJoinProfile`},
	{name: "vars are 64 at most", base: minimalClass,
		accepted: `spec: {vars: {` + numbered(64) + `}}`,
		refused:  `spec: {vars: {` + numbered(65) + `}}`, message: `spec.vars: Too many: 65: must have at most 64 items`},
	{name: "keys of vars are shell identifiers", base: minimalClass,
		accepted: `spec: {vars: {_a1: v}}`,
		refused:  `spec: {vars: {a-b: v}}`, message: `keys of vars must be shell identifiers`},
	{name: "values of vars have 2048 characters at most", base: minimalClass,
		accepted: `spec: {vars: {a: ` + long(2048) + `}}`,
		refused:  `spec: {vars: {a: ` + long(2049) + `}}`, message: `values of vars must not exceed 2048 characters`},
	{name: "joinSecretRef names a Secret when it is there", base: minimalClass,
		accepted: `spec: {joinSecretRef: {name: s}}`,
		refused:  `spec: {joinSecretRef: {}}`, message: `joinSecretRef.name must name a Secret in the pool namespace`},
	{name: "providerIDSource is Static or Adopt", base: minimalClass,
		accepted: `spec: {providerIDSource: Adopt}`,
		refused:  `spec: {providerIDSource: adopt}`, message: `spec.providerIDSource: Unsupported value: "adopt": supported values: "Static", "Adopt"`},
	{name: "pricePerCPUHour is a decimal number", base: minimalClass,
		accepted: `spec: {pricePerCPUHour: "1.25"}`,
		refused:  `spec: {pricePerCPUHour: "-1"}`, message: `spec.pricePerCPUHour: Invalid value: "-1"`},
	{name: "kubeReserved gives known resources only", base: minimalClass,
		accepted: `spec: {kubeReserved: {cpu: 100m, memory: 1Gi, ephemeral-storage: 1Gi}}`,
		refused:  `spec: {kubeReserved: {pods: "1"}}`, message: `kubeReserved may give cpu, memory and ephemeral-storage only`},
	{name: "maxPods is at least 1", base: minimalClass,
		accepted: `spec: {maxPods: 1}`,
		refused:  `spec: {maxPods: 0}`, message: `spec.maxPods: Invalid value: 0`},
	{name: "maxPods is at most 65535", base: minimalClass,
		accepted: `spec: {maxPods: 65535}`,
		refused:  `spec: {maxPods: 65536}`, message: `spec.maxPods: Invalid value: 65536`},
	{name: "zone is a label value", base: minimalClass,
		accepted: `spec: {zone: rack_1.B}`,
		refused:  `spec: {zone: rack 1}`, message: `spec.zone: Invalid value: "rack 1"`},
	{name: "zone has 63 characters at most", base: minimalClass,
		accepted: `spec: {zone: ` + long(63) + `}`,
		refused:  `spec: {zone: ` + long(64) + `}`, message: `spec.zone: Too long: may not be more than 63 bytes`},
	{name: "cluster gives an endpoint", base: minimalClass,
		accepted: `spec: {cluster: {endpoint: "https://api:6443"}}`,
		refused:  `spec: {cluster: {caBundle: QUJD}}`, message: `spec.cluster.endpoint: Required value`},
	{name: "cluster.endpoint is https", base: minimalClass,
		accepted: `spec: {cluster: {endpoint: "https://a"}}`,
		refused:  `spec: {cluster: {endpoint: "http://a"}}`, message: `spec.cluster.endpoint: Invalid value: "http://a": spec.cluster.endpoint in body should match '^https://.+$'`},
	{name: "cluster.endpoint has 253 characters at most", base: minimalClass,
		accepted: `spec: {cluster: {endpoint: "https://` + long(245) + `"}}`,
		refused:  `spec: {cluster: {endpoint: "https://` + long(246) + `"}}`, message: `spec.cluster.endpoint: Too long: may not be more than 253 bytes`},
	{name: "cluster.caBundle is base64", base: minimalClass,
		accepted: `spec: {cluster: {endpoint: "https://a", caBundle: QUJD}}`,
		refused:  `spec: {cluster: {endpoint: "https://a", caBundle: "-----BEGIN"}}`, message: `spec.cluster.caBundle: Invalid value: "-----BEGIN"`},
	{name: "cluster.caBundle has 65536 characters at most", base: minimalClass,
		accepted: `spec: {cluster: {endpoint: "https://a", caBundle: ` + strings.Repeat("QUJD", 16384) + `}}`,
		refused:  `spec: {cluster: {endpoint: "https://a", caBundle: ` + strings.Repeat("QUJD", 16385) + `}}`, message: `spec.cluster.caBundle: Too long`},
	{name: "startupTaintGates are 16 at most", base: minimalClass,
		accepted: `spec: {startupTaintGates: [` + gates(16) + `]}`,
		refused:  `spec: {startupTaintGates: [` + gates(17) + `]}`, message: `spec.startupTaintGates: Too many: 17: must have at most 16 items`},
	{name: "one gate a taint key", base: minimalClass,
		accepted: `spec: {startupTaintGates: [` + gate("a", ready) + `,` + gate("b", ready) + `]}`,
		refused:  `spec: {startupTaintGates: [` + gate("a", ready) + `,` + gate("a", condition) + `]}`, message: `spec.startupTaintGates[1]: Duplicate value`},
	{name: "taintKey is required", base: minimalClass,
		accepted: `spec: {startupTaintGates: [` + gate("example.com/Net_1", ready) + `]}`,
		refused:  `spec: {startupTaintGates: [{removeWhen: {` + ready + `}}]}`, message: `spec.startupTaintGates[0].taintKey: Required value`},
	{name: "taintKey is a qualified name", base: minimalClass,
		accepted: `spec: {startupTaintGates: [` + gate("node.cilium.io/agent-not-ready", ready) + `]}`,
		refused:  `spec: {startupTaintGates: [` + gate("Example.com/x", ready) + `]}`, message: `spec.startupTaintGates[0].taintKey: Invalid value: "Example.com/x"`},
	{name: "taintKey has 253 characters at most", base: minimalClass,
		accepted: `spec: {startupTaintGates: [` + gate(long(253), ready) + `]}`,
		refused:  `spec: {startupTaintGates: [` + gate(long(254), ready) + `]}`, message: `spec.startupTaintGates[0].taintKey: Too long: may not be more than 253 bytes`},
	{name: "removeWhen is required", base: minimalClass,
		accepted: `spec: {startupTaintGates: [` + gate("a", condition) + `]}`,
		refused:  `spec: {startupTaintGates: [{taintKey: a}]}`, message: `spec.startupTaintGates[0].removeWhen: Required value`},
	{name: "removeWhen says one thing: not none", base: minimalClass,
		accepted: `spec: {startupTaintGates: [` + gate("a", ready) + `]}`,
		refused:  `spec: {startupTaintGates: [` + gate("a", ``) + `]}`, message: `exactly one of podsReady and nodeCondition must be set`},
	{name: "removeWhen says one thing: not two", base: minimalClass,
		accepted: `spec: {startupTaintGates: [` + gate("a", condition) + `]}`,
		refused:  `spec: {startupTaintGates: [` + gate("a", ready+`,`+condition) + `]}`, message: `exactly one of podsReady and nodeCondition must be set`},
	{name: "podsReady.namespace is required", base: minimalClass,
		accepted: `spec: {startupTaintGates: [` + gate("a", ready) + `]}`,
		refused:  `spec: {startupTaintGates: [` + gate("a", `podsReady: {selector: {matchLabels: {a: b}}}`) + `]}`, message: `podsReady.namespace: Required value`},
	{name: "podsReady.namespace has 63 characters at most", base: minimalClass,
		accepted: `spec: {startupTaintGates: [` + gate("a", `podsReady: {namespace: `+long(63)+`, selector: {matchLabels: {a: b}}}`) + `]}`,
		refused:  `spec: {startupTaintGates: [` + gate("a", `podsReady: {namespace: `+long(64)+`, selector: {matchLabels: {a: b}}}`) + `]}`, message: `podsReady.namespace: Too long: may not be more than 63 bytes`},
	{name: "podsReady.selector is required", base: minimalClass,
		accepted: `spec: {startupTaintGates: [` + gate("a", `podsReady: {namespace: ns, selector: {matchExpressions: [{key: a, operator: Exists}]}}`) + `]}`,
		refused:  `spec: {startupTaintGates: [` + gate("a", `podsReady: {namespace: ns}`) + `]}`, message: `podsReady.selector: Required value`},
	{name: "podsReady.selector selects something", base: minimalClass,
		accepted: `spec: {startupTaintGates: [` + gate("a", ready) + `]}`,
		refused:  `spec: {startupTaintGates: [` + gate("a", `podsReady: {namespace: ns, selector: {matchLabels: {}}}`) + `]}`, message: `selector must have matchLabels or matchExpressions`},
	{name: "podsReady.minReady is at least 1", base: minimalClass,
		accepted: `spec: {startupTaintGates: [` + gate("a", `podsReady: {namespace: ns, minReady: 2, selector: {matchLabels: {a: b}}}`) + `]}`,
		refused:  `spec: {startupTaintGates: [` + gate("a", `podsReady: {namespace: ns, minReady: 0, selector: {matchLabels: {a: b}}}`) + `]}`, message: `podsReady.minReady: Invalid value: 0`},
	{name: "nodeCondition.type is required", base: minimalClass,
		accepted: `spec: {startupTaintGates: [` + gate("a", condition) + `]}`,
		refused:  `spec: {startupTaintGates: [` + gate("a", `nodeCondition: {status: "True"}`) + `]}`, message: `nodeCondition.type: Required value`},
	{name: "nodeCondition.type has 316 characters at most", base: minimalClass,
		accepted: `spec: {startupTaintGates: [` + gate("a", `nodeCondition: {type: `+long(316)+`}`) + `]}`,
		refused:  `spec: {startupTaintGates: [` + gate("a", `nodeCondition: {type: `+long(317)+`}`) + `]}`, message: `nodeCondition.type: Too long: may not be more than 316 bytes`},
	{name: "nodeCondition.status is a condition status", base: minimalClass,
		accepted: `spec: {startupTaintGates: [` + gate("a", `nodeCondition: {type: Ready, status: Unknown}`) + `]}`,
		refused:  `spec: {startupTaintGates: [` + gate("a", `nodeCondition: {type: Ready, status: "Yes"}`) + `]}`, message: `nodeCondition.status: Unsupported value: "Yes"`},
}

var profileRules = []rule{
	{name: "version is not empty", base: minimalProfile,
		accepted: `spec: {version: "2"}`,
		refused:  `spec: {version: ""}`, message: `spec.version: Invalid value: ""`},
	{name: "version has known characters", base: minimalProfile,
		accepted: `spec: {version: v1.2_3-rc}`,
		refused:  `spec: {version: "1 2"}`, message: `spec.version: Invalid value: "1 2": spec.version in body should match '^[A-Za-z0-9._-]{1,63}$'`},
	{name: "version has 63 characters at most", base: minimalProfile,
		accepted: `spec: {version: ` + long(63) + `}`,
		refused:  `spec: {version: ` + long(64) + `}`, message: `spec.version: Invalid value`},
	{name: "scripts are required", base: minimalProfile,
		accepted: `spec: {scripts: {uninstall: "true"}}`,
		refused:  `spec: {scripts: null}`, message: `spec.scripts: Required value`},
	{name: "install is required", base: minimalProfile,
		accepted: `spec: {scripts: {install: "exit 0"}}`,
		refused:  `spec: {scripts: {install: null}}`, message: `spec.scripts.install: Required value`},
	{name: "join is required", base: minimalProfile,
		accepted: `spec: {scripts: {join: "exit 0"}}`,
		refused:  `spec: {scripts: {join: null}}`, message: `spec.scripts.join: Required value`},
	{name: "leave is required", base: minimalProfile,
		accepted: `spec: {scripts: {leave: "exit 0"}}`,
		refused:  `spec: {scripts: {leave: null}}`, message: `spec.scripts.leave: Required value`},
	tooLong("scripts", "install", 262144), tooLong("scripts", "join", 262144),
	tooLong("scripts", "leave", 262144), tooLong("scripts", "uninstall", 262144),
	tooLong("signatures", "install", 16384), tooLong("signatures", "join", 16384),
	tooLong("signatures", "leave", 16384), tooLong("signatures", "uninstall", 16384),
	{name: "a manifest is nothing without its signature", base: minimalProfile,
		accepted: `spec: {manifests: {join: {manifest: "kpssh-manifest: 1", signature: "s"}}}`,
		refused:  `spec: {manifests: {join: {manifest: "kpssh-manifest: 1"}}}`, message: `spec.manifests.join.signature: Required value`},
	{name: "a manifest has 4096 characters at most", base: minimalProfile,
		accepted: `spec: {manifests: {leave: {manifest: ` + strings.Repeat("x", 4096) + `, signature: s}}}`,
		refused:  `spec: {manifests: {leave: {manifest: ` + strings.Repeat("x", 4097) + `, signature: s}}}`, message: `spec.manifests.leave.manifest: Too long: may not be more than 4096`},
	duration("install", "90s", "banana"), duration("join", "1h30m", "1.5h"), duration("leave", "0s", "100ms"),
	{name: "section 3 #22: kubeletUnits are names of services", base: minimalProfile,
		accepted: `spec: {kubeletUnits: [k3s-agent.service, "kubelet@a.service", snap.kubelet-eks.daemon.service]}`,
		refused:  `spec: {kubeletUnits: ["kubelet; reboot.service"]}`, message: `spec.kubeletUnits[0] in body should match`},
	{name: "section 3 #22: kubeletUnits name the kind of unit", base: minimalProfile,
		accepted: `spec: {kubeletUnits: [kubelet.service]}`,
		refused:  `spec: {kubeletUnits: [kubelet]}`, message: `spec.kubeletUnits[0] in body should match`},
	{name: "section 3 #22: kubeletUnits are 8 at most", base: minimalProfile,
		accepted: `spec: {kubeletUnits: [a.service, b.service, c.service, d.service, e.service, f.service, g.service, h.service]}`,
		refused:  `spec: {kubeletUnits: [a.service, b.service, c.service, d.service, e.service, f.service, g.service, h.service, i.service]}`,
		message:  `spec.kubeletUnits: Too many: 9: must have at most 8 items`},
	{name: "section 3 #22: kubeletUnits are not empty", base: minimalProfile,
		accepted: `spec: {kubeletUnits: null}`,
		refused:  `spec: {kubeletUnits: []}`, message: `spec.kubeletUnits in body should have at least 1 items`},
	{name: "section 2 #33: a timeout that overflows is refused, for it would break every typed list", base: minimalProfile,
		accepted: `spec: {timeouts: {install: 999999h}}`,
		refused:  `spec: {timeouts: {install: 9999999h}}`, message: `a timeout's numbers have 6 digits at most`},
	{name: "section 2 #33: a timeout has 20 characters at most", base: minimalProfile,
		accepted: `spec: {timeouts: {install: 999999h999999h99999h}}`,
		refused:  `spec: {timeouts: {install: 999999h999999h999999h}}`, message: `spec.timeouts.install: Too long: may not be more than 20 bytes`},
}

// Parts of startup taint gates, as YAML flow.
const (
	ready     = `podsReady: {namespace: ns, selector: {matchLabels: {a: b}}}`
	condition = `nodeCondition: {type: Ready}`
)

func gate(key, when string) string { return `{taintKey: ` + key + `, removeWhen: {` + when + `}}` }

func gates(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = gate(long(i+1), ready)
	}
	return strings.Join(all, ",")
}

func numbered(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = long(i+1) + ": v"
	}
	return strings.Join(all, ",")
}

func tooLong(part, phase string, limit int) rule {
	path := "spec." + part + "." + phase
	patch := func(n int) string { return `spec: {` + part + `: {` + phase + `: ` + long(n) + `}}` }
	return rule{name: path + " has a limit", base: minimalProfile, accepted: patch(limit), refused: patch(limit + 1), message: path + ": Too long"}
}

func duration(phase, good, bad string) rule {
	patch := func(value string) string { return `spec: {timeouts: {` + phase + `: ` + value + `}}` }
	return rule{name: "section 2 #33: timeouts." + phase + " is a duration", base: minimalProfile, accepted: patch(good), refused: patch(bad),
		message: `spec.timeouts.` + phase + `: Invalid value: "` + bad + `"`}
}

func TestEveryRuleAcceptsAndRefuses(t *testing.T) {
	for kind, rules := range map[string][]rule{"SSHHost": hostRules, "SSHNodeClass": classRules, "SSHJoinProfile": profileRules} {
		t.Run(kind, func(t *testing.T) {
			for _, r := range rules {
				t.Run(r.name, func(t *testing.T) { r.check(t) })
			}
		})
	}
}

func (r rule) check(t *testing.T) {
	try := func(patch string) error {
		if r.existing == "" {
			return api.Create(t.Context(), merged(t, object(t, r.base), patch), client.DryRunAll)
		}
		created := merged(t, object(t, r.base), r.existing)
		if err := api.Create(t.Context(), created); err != nil {
			t.Fatalf("creating the object to change: %v", err)
		}
		return api.Update(t.Context(), merged(t, created, patch), client.DryRunAll)
	}
	if err := try(r.accepted); err != nil {
		t.Errorf("should be accepted, got: %v", err)
	}
	err := try(r.refused)
	if err == nil {
		t.Fatalf("should be refused with %q", r.message)
	}
	if !strings.Contains(err.Error(), r.message) {
		t.Errorf("refusal\n got %v\nwant %s", err, r.message)
	}
}

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	parsed := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &parsed.Object); err != nil {
		t.Fatal(err)
	}
	return parsed
}

// merged applies a JSON merge patch, written as YAML, to a copy of the object.
func merged(t *testing.T, base *unstructured.Unstructured, patch string) *unstructured.Unstructured {
	t.Helper()
	raw, err := base.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	delta, err := yaml.YAMLToJSON([]byte(patch))
	if err != nil {
		t.Fatal(err)
	}
	raw, err = jsonpatch.MergePatch(raw, delta)
	if err != nil {
		t.Fatal(err)
	}
	result := &unstructured.Unstructured{}
	if err := json.Unmarshal(raw, &result.Object); err != nil {
		t.Fatal(err)
	}
	return result
}
