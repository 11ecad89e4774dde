package lab

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// auditPolicy records who did what to which object, once per request, without bodies: the log is for counting. New NodeClaims are the
// exception: the API server names them, so that only the body tells which they are.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
omitManagedFields: true
rules:
- level: None
  nonResourceURLs: ["*"]
- level: Request
  verbs: [create]
  resources: [{group: karpenter.sh, resources: [nodeclaims]}]
- level: Metadata
`

// AuditEvent is one finished request.
type AuditEvent struct {
	Verb string    `json:"verb"`
	URI  string    `json:"requestURI"`
	Time time.Time `json:"requestReceivedTimestamp"`
	User struct {
		Username string   `json:"username"`
		Groups   []string `json:"groups"`
	} `json:"user"`
	UserAgent string `json:"userAgent"`
	Object    struct {
		Group       string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	Response struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	// Claim is the NodeClaim that a create asked for; its name is the API server's choice and not known.
	Claim *karpv1.NodeClaim `json:"requestObject"`
}

// Write tells whether the request asked for a change.
func (e AuditEvent) Write() bool {
	switch e.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return true
	}
	return false
}

// AuditLog is the path of the audit log (Options.Audit).
func (cp *ControlPlane) AuditLog() string { return filepath.Join(cp.Dir, "audit.log") }

// ReadAudit parses the audit log: all requests that have finished, in order.
func (cp *ControlPlane) ReadAudit() ([]AuditEvent, error) {
	file, err := os.Open(cp.AuditLog())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var events []AuditEvent
	reader := bufio.NewReader(file)
	for {
		line, err := reader.ReadBytes('\n')
		if err != nil {
			return events, nil // the last line may still be in the making
		}
		var event AuditEvent
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("audit log: %w", err)
		}
		events = append(events, event)
	}
}

// AuditKey names an object among all of the cluster.
type AuditKey struct{ Resource, Namespace, Name string }

// Key is the object that the request was about.
func (e AuditEvent) Key() AuditKey {
	return AuditKey{Resource: e.Object.Resource, Namespace: e.Object.Namespace, Name: e.Object.Name}
}
