package chart_test

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func ofKind(objects []*unstructured.Unstructured, kind string) (found []*unstructured.Unstructured) {
	for _, o := range objects {
		if o.GetKind() == kind {
			found = append(found, o)
		}
	}
	return found
}

// Alerts and dashboards come when they are asked for, whole, and with the labels by which they are found.
func TestAlertsAndDashboardsAreInstalledOnRequest(t *testing.T) {
	if plain := render(t, "kpssh", "kp-a", nil); len(ofKind(plain, "PrometheusRule")) != 0 || len(ofKind(plain, "ConfigMap")) != 0 {
		t.Error("they are installed though nobody asked for them")
	}
	values := instance("seg-a")
	values["prometheusRule"] = map[string]any{"enabled": true, "additionalLabels": map[string]any{"release": "prometheus", "app.kubernetes.io/name": "other"}}
	values["grafanaDashboard"] = map[string]any{"enabled": true}
	objects := render(t, "kpssh", "kp-a", values)
	rules := ofKind(objects, "PrometheusRule")
	if len(rules) != 1 {
		t.Fatalf("%d PrometheusRules", len(rules))
	}
	if labels := rules[0].GetLabels(); labels["release"] != "prometheus" || labels["app.kubernetes.io/name"] != "karpenter-provider-ssh" {
		t.Errorf("labels %v", labels)
	}
	groups, _, err := unstructured.NestedSlice(rules[0].Object, "spec", "groups")
	if err != nil {
		t.Fatal(err)
	}
	alerts := 0
	for _, group := range groups {
		alerts += len(group.(map[string]any)["rules"].([]any))
	}
	if alerts < 17 {
		t.Errorf("%d alerts", alerts)
	}
	boards := ofKind(objects, "ConfigMap")
	if len(boards) != 2 {
		t.Fatalf("%d dashboards", len(boards))
	}
	for _, board := range boards {
		if board.GetLabels()["grafana_dashboard"] != "1" {
			t.Errorf("%s has labels %v", board.GetName(), board.GetLabels())
		}
		files, _, err := unstructured.NestedStringMap(board.Object, "data")
		if err != nil || len(files) != 1 {
			t.Fatalf("%s holds %v, %v", board.GetName(), files, err)
		}
		for name, content := range files {
			if !json.Valid([]byte(content)) {
				t.Errorf("%s is not JSON", name)
			}
		}
	}
}
