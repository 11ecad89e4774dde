package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kpssh/karpenter-provider-ssh/apis/v1beta1"
)

const workload = "demo"

// play is the demonstration itself.
func (s *stage) play(ctx context.Context, begin time.Time, patience time.Duration) error {
	machines := len(s.fleet.Machines())
	screen := newScreen(os.Stdout, begin)
	times := newTimes()
	until := func(what string, done func(*snapshot) bool) error {
		err := s.watch(ctx, screen, times, patience, done)
		if errors.Is(err, errTooLong) {
			return fmt.Errorf("%s: not within %s", what, patience)
		}
		return err
	}

	screen.say("the controller has started; it probes %d machines", machines)
	err := until("all machines Available and the node class ready", func(now *snapshot) bool {
		return now.inState(v1beta1.HostAvailable) == machines && now.classes == ""
	})
	if err != nil {
		return s.withTroubles(ctx, err)
	}

	screen.say("all machines are Available: creating a Deployment of %d pods that need a machine each", machines)
	times.start(up)
	if err := s.client.Create(ctx, deployment(machines)); err != nil {
		return err
	}
	err = until("every pod Running", func(now *snapshot) bool { return now.running == machines })
	if err != nil {
		return s.withTroubles(ctx, err)
	}
	times.finish(up)

	screen.say("all pods run: scaling the Deployment to zero; the NodePool waits (consolidateAfter) before it gives machines back")
	times.start(down)
	scale := client.RawPatch(client.Merge.Type(), []byte(`{"spec":{"replicas":0}}`))
	if err := s.client.Patch(ctx, deployment(machines), scale); err != nil {
		return err
	}
	err = until("every machine Available again, and no node or NodeClaim left", func(now *snapshot) bool {
		return now.inState(v1beta1.HostAvailable) == machines && now.nodes == 0 && now.claims == 0 && now.pods == 0
	})
	if err != nil {
		return s.withTroubles(ctx, err)
	}
	times.finish(down)
	screen.say("all machines are back in the pool")
	screen.erase()
	fmt.Print(times.summary(s.fleet.Machines(), time.Since(begin)))
	return nil
}

var errTooLong = errors.New("it took too long")

// watch shows what happens until it is done.
func (s *stage) watch(ctx context.Context, screen *screen, times *times, patience time.Duration, done func(*snapshot) bool) error {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		now, err := look(ctx, s.client)
		if err != nil {
			return err
		}
		screen.show(now)
		times.note(now)
		if done(now) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.controller.Done():
			return fmt.Errorf("the controller ended: %w", errors.Join(s.controller.Err(), ctx.Err()))
		case <-deadline.C:
			return errTooLong
		case <-ticker.C:
		}
	}
}

// withTroubles adds what the cluster itself says is wrong.
func (s *stage) withTroubles(ctx context.Context, err error) error {
	now, lookErr := look(ctx, s.client)
	if lookErr != nil || now.troubles() == "" {
		return err
	}
	return fmt.Errorf("%w\n%s", err, strings.TrimSpace(now.troubles()))
}

// deployment has pods that keep off each other's node.
func deployment(replicas int) *appsv1.Deployment {
	labels := map[string]string{"app": workload}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: workload},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(replicas)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
						RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
							LabelSelector: &metav1.LabelSelector{MatchLabels: labels}, TopologyKey: corev1.LabelHostname,
						}},
					}},
					Containers: []corev1.Container{{
						Name: "pause", Image: "registry.k8s.io/pause:3.10",
						Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
							corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"),
						}},
					}},
				},
			},
		},
	}
}
