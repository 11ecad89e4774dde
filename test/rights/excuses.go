package rights

// InEndToEndTests are the rights that the scenarios of test/e2e need not use.
var InEndToEndTests = []Excuse{
	{"", "namespaces", []string{"list", "watch"}, "for pod affinity with a namespaceSelector; karpenter's own tests"},
	{"", "persistentvolumeclaims", []string{"get", "list", "watch"}, "for pods with volumes; karpenter's own tests"},
	{"", "persistentvolumes", []string{"get", "list", "watch"}, "for pods with volumes; karpenter's own tests"},
	{"storage.k8s.io", "storageclasses", []string{"get", "list", "watch"}, "for pods with volumes; karpenter's own tests"},
	{"", "pods", []string{"delete"}, "for pods that outlive their grace period; karpenter's own tests"},
	{"", "events", []string{"create", "patch"}, "for changes of conditions, and for events that repeat; test/integration"},
	{"events.k8s.io", "events", []string{"patch"}, "for events that repeat; test/integration"},
	{"certificates.k8s.io", "certificatesigningrequests", []string{"list"}, "after a quarter of an hour without a Node; pkg/controllers/join"},
	{"karpenter.sh", "nodeclaims/finalizers", []string{"update"}, "asked by admission plugin OwnerReferencesPermissionEnforcement, which is no request; test/chart"},
	{"karpenter.sh", "nodepools/finalizers", []string{"update"}, "asked by admission plugin OwnerReferencesPermissionEnforcement, which is no request; test/chart"},
	{"apps", "controllerrevisions", []string{"delete"}, "for profiles that changed often; pkg/profile"},
	{"coordination.k8s.io", "leases", []string{"patch"}, "marks the lease when another release wants its name; pkg/ownership/lease"},
}
