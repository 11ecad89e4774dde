package conflict

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

// sharedMachines are listed by more than one SSHHost: by address, or by a host key that only one machine should have.
func sharedMachines(v *view) (found []Finding) {
	byAddress, byKey := map[string][]Host{}, map[string][]Host{}
	for _, h := range v.Hosts {
		byAddress[endpoint(h)] = append(byAddress[endpoint(h)], h)
		if h.Fingerprint != "" {
			byKey[h.Fingerprint] = append(byKey[h.Fingerprint], h)
		}
	}
	for _, h := range v.Hosts {
		var others, why []string
		named := map[string]bool{}
		add := func(reason string, hosts []Host, same func(Host) bool) {
			hit := false
			for _, other := range hosts {
				name := other.Namespace + "/" + other.Name
				if name == h.Namespace+"/"+h.Name || !same(other) {
					continue
				}
				hit = true
				if !named[name] {
					named[name] = true
					others = append(others, name)
				}
			}
			if hit {
				why = append(why, reason)
			}
		}
		add("address and port", byAddress[endpoint(h)], func(other Host) bool { return !apart(h, other) })
		if h.Fingerprint != "" {
			add("host key "+h.Fingerprint, byKey[h.Fingerprint], func(Host) bool { return true })
		}
		if len(others) == 0 {
			continue
		}
		slices.Sort(others)
		found = append(found, Finding{
			Type: v1beta1.ReasonSharedMachine, Object: hostRef(h), Owner: v.named[h.Namespace], Other: others[0], Classes: v.selecting(h),
			Message: fmt.Sprintf("has the %s of %s: one machine that is listed twice works for one of them only. Delete all SSHHosts of the machine but one; if they are different machines made of one image, give each its own host keys",
				strings.Join(why, " and the "), some(others)),
		})
	}
	return found
}

// apart: segments may use the same private addresses, so that the same address in two of them is two machines if the keys say so.
func apart(a, b Host) bool {
	return a.Namespace != b.Namespace && a.Fingerprint != "" && b.Fingerprint != "" && a.Fingerprint != b.Fingerprint
}

// endpoint spells address and port in one way.
func endpoint(h Host) string {
	address := strings.TrimSuffix(strings.ToLower(h.Address), ".")
	if ip, err := netip.ParseAddr(address); err == nil {
		address = ip.Unmap().String()
	}
	return fmt.Sprintf("%s %d %s", address, cmp.Or(h.Port, 22), h.Via)
}

// via names the jump hosts to a host, in their order.
func via(h *v1beta1.SSHHost) string {
	names := make([]string, 0, len(h.Spec.JumpHosts))
	for _, jump := range h.Spec.JumpHosts {
		names = append(names, endpoint(Host{Address: jump.Address, Port: jump.Port}))
	}
	return strings.Join(names, ",")
}

// ownedElsewhere passes on what this instance's machines say about their owner.
func ownedElsewhere(v *view) (found []Finding) {
	for _, h := range v.Hosts {
		if h.OwnedElsewhere == "" || h.Namespace != v.Self.PoolNamespace {
			continue
		}
		found = append(found, Finding{
			Type: v1beta1.ReasonHostOwnedElsewhere, Object: hostRef(h), Owner: v.Self.Instance, Classes: v.selecting(h),
			Message: fmt.Sprintf("SSHHost %s/%s: %s", h.Namespace, h.Name, h.OwnedElsewhere),
		})
	}
	return found
}
