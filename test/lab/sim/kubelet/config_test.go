package kubelet

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestReadConfig(t *testing.T) {
	for _, test := range []struct {
		name    string
		content string
		want    Config
		failure string // in the error; empty: none
	}{
		{
			name: "everything",
			content: "NODE_NAME=n\nNODE_IP=10.0.0.1\nPROVIDER_ID=kpssh://a/b\nNODE_LABELS=a=b,c.example.com/d=\n" +
				"TAINTS=karpenter.sh/unregistered:NoExecute,example.com/a=x:y:NoSchedule\n",
			want: Config{
				NodeName: "n", NodeIP: "10.0.0.1", ProviderID: "kpssh://a/b",
				Labels: map[string]string{"a": "b", "c.example.com/d": ""},
				Taints: []corev1.Taint{
					{Key: "karpenter.sh/unregistered", Effect: corev1.TaintEffectNoExecute},
					{Key: "example.com/a", Value: "x:y", Effect: corev1.TaintEffectNoSchedule},
				},
			},
		},
		{name: "empty values", content: "NODE_NAME=n\nNODE_IP=::1\nPROVIDER_ID=\nNODE_LABELS=\nTAINTS=\n", want: Config{NodeName: "n", NodeIP: "::1", Labels: map[string]string{}}},
		{name: "a label without value", content: "NODE_LABELS=a", failure: "NODE_LABELS"},
		{name: "a taint without effect", content: "TAINTS=a=b", failure: "TAINTS"},
		{name: "an unknown effect", content: "TAINTS=a:Sometimes", failure: "no known effect"},
		{name: "an unknown setting", content: "NODE_NMAE=n", failure: "NODE_NMAE"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kubelet.env")
			if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := ReadConfig(path)
			if test.failure != "" {
				if err == nil || !strings.Contains(err.Error(), test.failure) {
					t.Errorf("want an error about %s, got %v", test.failure, err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestAKubeletWithoutANameOrAddressExits(t *testing.T) {
	for _, config := range []Config{{NodeIP: "10.0.0.1"}, {NodeName: "n"}} {
		if err := Run(t.Context(), Options{Config: config}); err == nil {
			t.Errorf("%+v: it ran", config)
		}
	}
}
