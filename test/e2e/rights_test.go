//go:build linux && e2e

package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/kpssh/karpenter-provider-ssh/test/rights"
)

// expectRightsInUse is the chart's RBAC against what the instances asked for, events included (section 2 #43): nothing missing, nothing refused by
// a policy, and, when the whole suite has run, nothing spare.
func (w *world) expectRightsInUse() {
	GinkgoHelper()
	audit, err := w.cp.ReadAudit()
	Expect(err).NotTo(HaveOccurred())
	var holders []rights.Holder
	for _, i := range installations {
		objects, err := i.objects()
		Expect(err).NotTo(HaveOccurred())
		holder := rights.Holder{Name: i.instance}
		holder.Rights, err = rights.Of(objects)
		Expect(err).NotTo(HaveOccurred())
		for _, e := range audit {
			if e.User.Username == "system:serviceaccount:"+i.namespace+":"+serviceAccount && e.UserAgent != planted {
				holder.Requests = append(holder.Requests, e)
			}
		}
		say("instance %s asked for %d things and has %d rights", i.instance, len(holder.Requests), len(holder.Rights))
		holders = append(holders, holder)
	}
	judgement := rights.Judge(holders, rights.InEndToEndTests)
	Expect(judgement.Missing).To(BeEmpty(), "H4: the chart does not give what an instance needs")
	Expect(judgement.Refused).To(BeEmpty(), "H4: admission policies refuse what an instance needs")
	Expect(judgement.Stale).To(BeEmpty())
	if suite, _ := GinkgoConfiguration(); len(suite.FocusStrings)+len(suite.SkipStrings) > 0 {
		say("not used by this part of the suite: %v", judgement.Spare)
		return
	}
	Expect(judgement.Spare).To(BeEmpty(), "H4: the chart gives what no instance uses")
}
