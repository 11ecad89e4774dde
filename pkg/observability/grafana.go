package observability

import (
	"encoding/json"
	"fmt"
)

// What of Grafana's model is used.
type (
	dashboard struct {
		UID           string     `json:"uid"`
		Title         string     `json:"title"`
		Description   string     `json:"description"`
		Tags          []string   `json:"tags"`
		SchemaVersion int        `json:"schemaVersion"`
		Editable      bool       `json:"editable"`
		Refresh       string     `json:"refresh"`
		Time          span       `json:"time"`
		Templating    templating `json:"templating"`
		Links         []link     `json:"links"`
		Panels        []panel    `json:"panels"`
	}
	span struct {
		From string `json:"from"`
		To   string `json:"to"`
	}
	templating struct {
		List []variable `json:"list"`
	}
	variable struct {
		Name       string      `json:"name"`
		Label      string      `json:"label"`
		Type       string      `json:"type"`
		Query      string      `json:"query"`
		Datasource *datasource `json:"datasource,omitempty"`
		Refresh    int         `json:"refresh,omitempty"`
		Sort       int         `json:"sort,omitempty"`
		IncludeAll bool        `json:"includeAll,omitempty"`
		Multi      bool        `json:"multi,omitempty"`
		AllValue   string      `json:"allValue,omitempty"`
	}
	datasource struct {
		Type string `json:"type"`
		UID  string `json:"uid"`
	}
	link struct {
		Title       string   `json:"title"`
		Type        string   `json:"type"`
		Tags        []string `json:"tags"`
		IncludeVars bool     `json:"includeVars"`
		KeepTime    bool     `json:"keepTime"`
	}
	panel struct {
		ID              int              `json:"id"`
		Type            string           `json:"type"`
		Title           string           `json:"title"`
		Description     string           `json:"description,omitempty"`
		Datasource      *datasource      `json:"datasource,omitempty"`
		GridPos         place            `json:"gridPos"`
		Targets         []target         `json:"targets,omitempty"`
		FieldConfig     *fieldConfig     `json:"fieldConfig,omitempty"`
		Transformations []transformation `json:"transformations,omitempty"`
	}
	place struct {
		H int `json:"h"`
		W int `json:"w"`
		X int `json:"x"`
		Y int `json:"y"`
	}
	target struct {
		RefID        string `json:"refId"`
		Expr         string `json:"expr"`
		LegendFormat string `json:"legendFormat,omitempty"`
		Instant      bool   `json:"instant,omitempty"`
		Format       string `json:"format,omitempty"`
	}
	fieldConfig struct {
		Defaults  defaults `json:"defaults"`
		Overrides []any    `json:"overrides"`
	}
	defaults struct {
		Unit string `json:"unit,omitempty"`
		Min  *int   `json:"min,omitempty"`
	}
	transformation struct {
		ID      string         `json:"id"`
		Options map[string]any `json:"options"`
	}
)

var prometheusSource = &datasource{Type: "prometheus", UID: "${datasource}"}

// query is a line of a graph, or a table. In expr, $sel stands for the selector of the instances that were chosen.
type query struct{ expr, legend string }

// board lays panels out, three in a row.
type board struct {
	panels []panel
	x, y   int
}

const (
	width  = 8
	height = 8
)

func (b *board) place(w, h int) place {
	if b.x+w > 24 {
		b.x, b.y = 0, b.y+height
	}
	p := place{H: h, W: w, X: b.x, Y: b.y}
	b.x += w
	return p
}

func (b *board) row(title string) {
	if b.x > 0 {
		b.y += height
	}
	b.x = 0
	b.panels = append(b.panels, panel{ID: len(b.panels) + 1, Type: "row", Title: title, GridPos: place{H: 1, W: 24, Y: b.y}})
	b.y++
}

func (b *board) graph(title, description, unit string, queries ...query) {
	p := panel{
		ID: len(b.panels) + 1, Type: "timeseries", Title: title, Description: description, Datasource: prometheusSource, GridPos: b.place(width, height),
		FieldConfig: &fieldConfig{Defaults: defaults{Unit: unit, Min: new(0)}, Overrides: []any{}},
	}
	for i, q := range queries {
		p.Targets = append(p.Targets, target{RefID: string(rune('A' + i)), Expr: expand(q.expr), LegendFormat: q.legend})
	}
	b.panels = append(b.panels, p)
}

// table shows the labels of what is there now.
func (b *board) table(title, description, unit, expr string) {
	b.panels = append(b.panels, panel{
		ID: len(b.panels) + 1, Type: "table", Title: title, Description: description, Datasource: prometheusSource, GridPos: b.place(width, height),
		Targets:         []target{{RefID: "A", Expr: expand(expr), Instant: true, Format: "table"}},
		FieldConfig:     &fieldConfig{Defaults: defaults{Unit: unit}, Overrides: []any{}},
		Transformations: []transformation{{ID: "organize", Options: map[string]any{"excludeByName": map[string]bool{"Time": true}}}},
	})
}

// finish is the dashboard's JSON.
func (b *board) finish(uid, title, description string) ([]byte, error) {
	out, err := json.MarshalIndent(dashboard{
		UID: uid, Title: title, Description: description, Tags: []string{"kpssh", "karpenter"}, SchemaVersion: 39, Editable: true, Refresh: "1m",
		Time: span{From: "now-6h", To: "now"},
		Templating: templating{List: []variable{
			{
				Name: "instance", Label: "Instance", Type: "query", Query: "label_values(kpssh_instance_info, kpssh_instance)", Datasource: prometheusSource,
				Refresh: 2, Sort: 1, IncludeAll: true, Multi: true, AllValue: ".+",
			},
			{Name: "datasource", Label: "Data source", Type: "datasource", Query: "prometheus"},
		}},
		Links:  []link{{Title: "karpenter-provider-ssh", Type: "dashboards", Tags: []string{"kpssh"}, IncludeVars: true, KeepTime: true}},
		Panels: b.panels,
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("dashboard %s: %w", title, err)
	}
	return append(out, '\n'), nil
}
