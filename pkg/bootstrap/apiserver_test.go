package bootstrap

import (
	"slices"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/test/lab/apiserver"
)

// A real API server takes the token for its instance's group, and no longer once it is deleted or an hour old.
func TestTokenOnARealAPIServer(t *testing.T) {
	config := apiserver.Start(t, apiserver.Flag("enable-bootstrap-token-auth", "true"))
	admin, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	// groups are those that the API server sees behind a token.
	groups := func(token string) ([]string, error) {
		anonymous := rest.AnonymousClientConfig(config)
		anonymous.BearerToken = token
		machine, err := client.New(anonymous, client.Options{Scheme: scheme.Scheme})
		if err != nil {
			return nil, err
		}
		review := &authenticationv1.SelfSubjectReview{}
		err = machine.Create(t.Context(), review)
		return review.Status.UserInfo.Groups, err
	}

	tokens := NewTokens(admin, "seg-a", clock.RealClock{})
	id := NewTokenID()
	var token string
	for range 2 { // the second time over what is left of the first
		if token, err = tokens.Mint(t.Context(), id, "claim"); err != nil {
			t.Fatal(err)
		}
	}
	// The API server learns of Secrets by watch.
	deadline := time.Now().Add(30 * time.Second)
	for {
		found, err := groups(token)
		if slices.Contains(found, "system:bootstrappers:kpssh:seg-a") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("groups %v, %v", found, err)
		}
		<-time.After(20 * time.Millisecond)
	}
	if err := tokens.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err = groups(token); apierrors.IsUnauthorized(err) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a deleted token is still taken: %v", err)
		}
		<-time.After(20 * time.Millisecond)
	}
	expired, err := NewTokens(admin, "seg-a", testingclock.NewFakePassiveClock(time.Now().Add(-Lifetime))).Mint(t.Context(), NewTokenID(), "claim")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := groups(expired); !apierrors.IsUnauthorized(err) {
		t.Errorf("an expired token is taken: %v", err)
	}
}
