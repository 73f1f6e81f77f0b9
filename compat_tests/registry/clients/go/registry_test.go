// Tests of a schema registry at $REGISTRY by franz-go's client.
package registry

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/sr"
)

const (
	first  = `{"type":"record","name":"User","fields":[{"name":"id","type":"string"}]}`
	second = `{"type":"record","name":"User","fields":[{"name":"id","type":"string"},{"name":"mail","type":"string","default":""}]}`
	wrong  = `{"type":"record","name":"User","fields":[{"name":"id","type":"string"},{"name":"age","type":"int"}]}`
	proto  = `syntax = "proto3"; message User { string id = 1; }`
)

func client(t *testing.T) (*sr.Client, context.Context) {
	t.Helper()
	made, err := sr.NewClient(sr.URLs(os.Getenv("REGISTRY")))
	if err != nil {
		t.Fatal(err)
	}
	return made, t.Context()
}

func must[T any](t *testing.T, found T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func refused(t *testing.T, err error, code int) {
	t.Helper()
	var told *sr.ResponseError
	if !errors.As(err, &told) || told.ErrorCode != code {
		t.Fatalf("%v is no error %d", err, code)
	}
}

func register(t *testing.T, cl *sr.Client, ctx context.Context, subject, text string) sr.SubjectSchema {
	t.Helper()
	made, err := cl.CreateSchema(ctx, subject, sr.Schema{Schema: text})
	return must(t, made, err)
}

func TestVersions(t *testing.T) {
	cl, ctx := client(t)
	one, two := register(t, cl, ctx, "go-versions", first), register(t, cl, ctx, "go-versions", second)
	if again := register(t, cl, ctx, "go-versions", first); again.ID != one.ID || two.ID <= one.ID {
		t.Fatal(one, two, again)
	}
	versions, err := cl.SubjectVersions(ctx, "go-versions")
	if !slices.Equal(must(t, versions, err), []int{1, 2}) {
		t.Fatal(versions)
	}
	latest, err := cl.SchemaByVersion(ctx, "go-versions", -1)
	if must(t, latest, err).Version != 2 {
		t.Fatal(latest)
	}
	byID, err := cl.SchemaByID(ctx, one.ID)
	if must(t, byID, err).Type != sr.TypeAvro {
		t.Fatal(byID)
	}
	found, err := cl.LookupSchema(ctx, "go-versions", sr.Schema{Schema: second})
	if must(t, found, err).Version != 2 {
		t.Fatal(found)
	}
	users, err := cl.SchemaUsagesByID(ctx, one.ID)
	if len(must(t, users, err)) != 1 {
		t.Fatal(users)
	}
	_, err = cl.CreateSchema(ctx, "go-versions", sr.Schema{Schema: wrong})
	refused(t, err, 40901)
	_, err = cl.CreateSchema(ctx, "go-versions", sr.Schema{Schema: "{"})
	refused(t, err, 42201)
	_, err = cl.SchemaByID(ctx, 1_000_000)
	refused(t, err, 40403)
	_, err = cl.SchemaByVersion(ctx, "go-none", -1)
	refused(t, err, 40401)
}

func TestCompatibility(t *testing.T) {
	cl, ctx := client(t)
	register(t, cl, ctx, "go-levels", first)
	told, err := cl.CheckCompatibility(sr.WithParams(ctx, sr.Verbose), "go-levels", -1, sr.Schema{Schema: wrong})
	if must(t, told, err); told.Is || len(told.Messages) == 0 {
		t.Fatal(told)
	}
	for _, each := range cl.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatNone}, "go-levels") {
		if each.Err != nil || each.Level != sr.CompatNone {
			t.Fatal(each)
		}
	}
	register(t, cl, ctx, "go-levels", wrong)
	for _, each := range cl.Compatibility(ctx, "go-levels", sr.GlobalSubject) {
		if each.Err != nil {
			t.Fatal(each)
		}
	}
	for _, each := range cl.ResetCompatibility(ctx, "go-levels") {
		if each.Err != nil {
			t.Fatal(each)
		}
	}
}

func TestModes(t *testing.T) {
	cl, ctx := client(t)
	for _, each := range cl.SetMode(ctx, sr.ModeReadOnly, "go-modes") {
		if each.Err != nil || each.Mode != sr.ModeReadOnly {
			t.Fatal(each)
		}
	}
	_, err := cl.CreateSchema(ctx, "go-modes", sr.Schema{Schema: first})
	refused(t, err, 42205)
	for _, each := range cl.ResetMode(ctx, "go-modes") {
		if each.Err != nil {
			t.Fatal(each)
		}
	}
	if made, err := cl.CreateSchemaWithIDAndVersion(ctx, "go-modes", sr.Schema{Schema: first}, 77, 1); err == nil {
		t.Fatal(made)
	}
	cl.SetMode(ctx, sr.ModeImport, "go-modes")
	made, err := cl.CreateSchemaWithIDAndVersion(ctx, "go-modes", sr.Schema{Schema: `"bytes"`}, 7_777, 5)
	if must(t, made, err); made.ID != 7_777 || made.Version != 5 {
		t.Fatal(made)
	}
}

func TestDeletions(t *testing.T) {
	cl, ctx := client(t)
	register(t, cl, ctx, "go-ends", first)
	_, err := cl.DeleteSubject(ctx, "go-ends", sr.HardDelete)
	refused(t, err, 40405)
	gone, err := cl.DeleteSubject(ctx, "go-ends", sr.SoftDelete)
	if !slices.Equal(must(t, gone, err), []int{1}) {
		t.Fatal(gone)
	}
	deleted, err := cl.Subjects(sr.WithParams(ctx, sr.ShowDeleted))
	if !slices.Contains(must(t, deleted, err), "go-ends") {
		t.Fatal(deleted)
	}
	_, err = cl.DeleteSubject(ctx, "go-ends", sr.HardDelete)
	must(t, true, err)
	_, err = cl.SubjectVersions(sr.WithParams(ctx, sr.ShowDeleted), "go-ends")
	refused(t, err, 40401)
}

func TestReferencesAndAll(t *testing.T) {
	cl, ctx := client(t)
	register(t, cl, ctx, "go-user", first)
	refers := sr.Schema{
		Schema:     `["null","User"]`,
		References: []sr.SchemaReference{{Name: "User", Subject: "go-user", Version: 1}},
	}
	made, err := cl.CreateSchema(ctx, "go-refers", refers)
	must(t, made, err)
	users, err := cl.SchemaReferences(ctx, "go-user", 1)
	if len(must(t, users, err)) != 1 || users[0].Subject != "go-refers" {
		t.Fatal(users)
	}
	err = cl.DeleteSchema(ctx, "go-user", 1, sr.SoftDelete)
	refused(t, err, 42206)
	made, err = cl.CreateSchema(ctx, "go-proto", sr.Schema{Schema: proto, Type: sr.TypeProtobuf})
	if must(t, made, err).Type != sr.TypeProtobuf {
		t.Fatal(made)
	}
	all, err := cl.AllSchemas(ctx)
	if len(must(t, all, err)) < 3 {
		t.Fatal(all)
	}
	kinds, err := cl.SupportedTypes(ctx)
	if len(must(t, kinds, err)) != 3 {
		t.Fatal(kinds)
	}
}

func TestSerde(t *testing.T) {
	cl, ctx := client(t)
	made, err := cl.CreateSchema(ctx, "go-serde", sr.Schema{Schema: `{"type":"object"}`, Type: sr.TypeJSON})
	must(t, made, err)
	type user struct{ ID string }
	var serde sr.Serde
	serde.Register(made.ID, user{}, sr.EncodeFn(json.Marshal), sr.DecodeFn(json.Unmarshal))
	var back user
	if err := serde.Decode(serde.MustEncode(user{"a"}), &back); err != nil || back.ID != "a" {
		t.Fatal(back, err)
	}
}
