//! Shapes as SVG text.

use std::fmt::Write;

/// A picture that grows by shapes.
#[derive(Default)]
pub(super) struct Svg {
    body: String,
}

const STYLE: &str = "text { font-family: system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #1f2328 } \
    .title { font-size: 17px; font-weight: 600 } .note { font-size: 12px; fill: #57606a } \
    .process { font-size: 12px; font-weight: 600 } .row { font-size: 11px; fill: #57606a } \
    .name { font-size: 11px } .alarm { font-size: 11px; font-weight: 600; fill: #cf222e } .time { font-size: 9.5px; fill: #424a53 } .tick { font-size: 10px; fill: #57606a }";

/// Arrowheads: of the request's flow, and of a step's.
const MARKERS: &str = r##"<marker id="request" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0.8L8 4L0 7.2Z" fill="#cf222e"/></marker><marker id="step" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto"><path d="M0 0.8L8 4L0 7.2Z" fill="#6e7781"/></marker>"##;

impl Svg {
    pub(super) fn rect(&mut self, [x, y, w, h]: [f64; 4], fill: &str, extra: &str, title: &str) {
        let title = match title {
            "" => String::new(),
            title => format!("<title>{}</title>", escape(title)),
        };
        self.push(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{w:.1}" height="{h:.1}" fill="{fill}" {extra}>{title}</rect>"#
        ));
    }

    pub(super) fn text(&mut self, x: f64, y: f64, class: &str, extra: &str, text: &str) {
        let text = escape(text);
        self.push(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" class="{class}" {extra}>{text}</text>"#
        ));
    }

    pub(super) fn line(&mut self, [x1, y1, x2, y2]: [f64; 4], stroke: &str, extra: &str) {
        self.push(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{stroke}" {extra}/>"#
        ));
    }

    pub(super) fn path(&mut self, d: &str, extra: &str) {
        self.push(format_args!(r#"<path d="{d}" {extra}/>"#));
    }

    /// Puts another picture's shapes on top.
    pub(super) fn append(&mut self, other: Svg) {
        self.body += &other.body;
    }

    pub(super) fn finish(self, width: f64, height: f64, title: &str) -> String {
        let (title, body) = (escape(title), self.body);
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}" role="img">
<title>{title}</title>
<style>{STYLE}</style>
<defs>{MARKERS}</defs>
<rect width="100%" height="100%" rx="8" fill="#ffffff"/>
{body}</svg>
"##
        )
    }

    fn push(&mut self, shape: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.body, "{shape}");
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
