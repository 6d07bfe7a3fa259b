//! The pictures: of a request, the whole of it true to scale and below it its way
//! to the first token, stretched where much happens; or all that was recorded.

use super::{
    axis::Axis,
    request_id,
    rows::{self, Row},
    svg::Svg,
};
use nano_trace::Event;
use nano_trace::timeline::{ArgValue, Hop, Moment, Through, Timeline, TimelineSlice, Track};
use std::collections::HashMap;

const WIDTH: f64 = 1480.0;
const LEFT: f64 = 176.0;
const RIGHT: f64 = 24.0;
const CHART: f64 = WIDTH - LEFT - RIGHT;
/// Height of a slice with its name and its duration.
const SLICE: f64 = 30.0;
/// Height of a slice with its name alone.
const LOW_SLICE: f64 = 17.0;
/// Height of a slice in the overview.
const BAR: f64 = 16.0;

/// Draws the request.
pub(super) fn picture(timeline: &Timeline, request: usize) -> String {
    let mut svg = Svg::default();
    let slice = &timeline.slices[request];
    let window = rows::window(timeline, request);
    let title = title(slice);
    svg.text(24.0, 34.0, "title", "", &title);
    let y = overview(&mut svg, timeline, request, window, 54.0);
    let y = detail(&mut svg, timeline, request, window, y + 34.0);
    svg.finish(WIDTH, y + 18.0, &title)
}

/// Draws all that was recorded, true to scale.
pub(super) fn whole(timeline: &Timeline) -> String {
    let mut svg = Svg::default();
    let window = rows::recorded(timeline);
    let rows = rows::all(timeline, window);
    let count = |event| timeline.slices_of(event).count();
    let title = format!(
        "requests: {}, steps: {}, time: {}, true to scale",
        count(Event::Request),
        count(Event::WorkerStep),
        time(window.1 - window.0)
    );
    svg.text(24.0, 34.0, "title", "", &title);
    let chart = Chart {
        rows,
        axis: Axis::linear(window.0, window.1, LEFT, CHART),
        marks: even_ticks(window.0, window.1),
        height: LOW_SLICE,
    };
    let y = chart.draw(&mut svg, timeline, 54.0, |_| true);
    svg.finish(WIDTH, y + 18.0, &title)
}

fn title(request: &TimelineSlice) -> String {
    let number = |name| request.arg(name).and_then(ArgValue::uint);
    let mut title = request_id(request).to_owned();
    // Its end says how many there were.
    if let (Some(prompt), Some(output)) = (number("prompt_tokens"), number("output_tokens")) {
        title += &format!(": {prompt} prompt tokens, {output} output tokens");
    }
    if let Some(duration) = request.duration() {
        title += &format!(", {}", time(duration));
    }
    title
}

/// All of the request's own tracks, true to scale.
fn overview(
    svg: &mut Svg,
    timeline: &Timeline,
    request: usize,
    window: (u64, u64),
    top: f64,
) -> f64 {
    let slice = &timeline.slices[request];
    let (from, to) = (slice.begin, slice.end.unwrap_or(window.1));
    let axis = Axis::linear(from, to, LEFT, CHART);
    let rows = rows::rows(timeline, request, (from, to));
    let mut y = top + 8.0;
    let note = "the whole request, true to scale; below it what is on yellow";
    svg.text(LEFT, top, "note", "", note);
    let shade = [
        axis.x(window.0),
        y,
        axis.x(window.1) - axis.x(window.0),
        0.0,
    ];
    let mut bars = Svg::default();
    let mut last = None;
    for row in &rows {
        // Of containers only what they hold is drawn.
        let deepest = row.depth.min(2) - 1;
        if last.replace(row.process.uuid) != Some(row.process.uuid) {
            bars.text(24.0, y + 12.0, "process", "", short(row.process));
        }
        bars.text(
            LEFT - 10.0,
            y + 12.0,
            "row",
            r#"text-anchor="end""#,
            &row.label,
        );
        for place in &row.slices {
            let slice = &timeline.slices[*place];
            if slice.depth == deepest || (slice.depth == 0 && deepest > 0) {
                let h = if slice.depth < deepest {
                    2.0
                } else {
                    BAR - 2.0
                };
                bar(
                    &mut bars,
                    &axis,
                    slice,
                    y + if slice.depth < deepest {
                        BAR - 2.0
                    } else {
                        0.0
                    },
                    h,
                );
            }
        }
        y += BAR + 4.0;
    }
    svg.rect(
        [shade[0], shade[1] - 2.0, shade[2].max(2.0), y - top - 8.0],
        "#fff8c5",
        "",
        "",
    );
    svg.append(bars);
    ticks(svg, from, even_ticks(from, to), &axis, y + 2.0, None);
    alarms(svg, timeline, &rows, &axis, [top + 6.0, y + 18.0])
}

/// A slice of the overview, with its name if that fits.
fn bar(svg: &mut Svg, axis: &Axis, slice: &TimelineSlice, y: f64, h: f64) {
    let (x, w) = extent(axis, slice);
    svg.rect([x, y, w, h], color(slice), "", &tooltip(slice));
    if h > 10.0 && w > text_width(&slice.name, 11.0) + 6.0 {
        svg.text(x + 4.0, y + 11.0, "name", "", &slice.name);
    }
}

/// The way to the first token.
fn detail(svg: &mut Svg, timeline: &Timeline, request: usize, window: (u64, u64), top: f64) -> f64 {
    let rows = rows::rows(timeline, request, window);
    let axis = stretched(timeline, &rows, window);
    let note = "from the request to its first token; time is stretched where much happens";
    svg.text(LEFT, top, "note", "", note);
    // Of others than the request's only a step's: they join two processes.
    let is_drawn = |hops: &[Hop]| {
        let mut through = hops.iter().map(|hop| hop.through);
        hops.len() == 2 || through.any(|through| through == Through::Begin(request))
    };
    let chart = Chart {
        rows,
        marks: axis.ticks(84.0),
        axis,
        height: SLICE,
    };
    chart.draw(svg, timeline, top + 12.0, is_drawn)
}

/// Rows with all their slices.
struct Chart<'a> {
    rows: Vec<Row<'a>>,
    axis: Axis,
    /// Where the time is written.
    marks: Vec<u64>,
    /// Of a slice.
    height: f64,
}

impl Chart<'_> {
    /// Draws it, with the arrows that are wanted; returns where it ends below.
    fn draw(
        self,
        svg: &mut Svg,
        timeline: &Timeline,
        top: f64,
        is_drawn: impl Fn(&[Hop]) -> bool,
    ) -> f64 {
        let Chart {
            rows,
            axis,
            marks,
            height,
        } = self;
        let axis = &axis;
        let window = axis.window();
        let mut y = top;
        let chart_top = y;
        // Where each drawn slice lies: x from, x to, y of its middle.
        let mut places: HashMap<usize, (f64, f64, f64)> = HashMap::new();
        let mut shapes = Svg::default();
        let mut last = None;
        for row in &rows {
            if last != Some(row.process.uuid) {
                if last.is_some() {
                    y += 8.0;
                    shapes.line([24.0, y - 7.0, WIDTH - RIGHT, y - 7.0], "#d0d7de", "");
                }
                shapes.text(24.0, y + 14.0, "process", "", short(row.process));
                last = Some(row.process.uuid);
            }
            let middle = y + row.depth as f64 * height / 2.0 + 4.0;
            let below = if row.depth == 1 {
                middle + 10.0
            } else {
                middle
            };
            let label_y = if places.is_empty() || row.depth > 1 {
                below
            } else {
                middle
            };
            shapes.text(
                LEFT - 10.0,
                label_y,
                "row",
                r#"text-anchor="end""#,
                &row.label,
            );
            for place in &row.slices {
                let slice = &timeline.slices[*place];
                let top = y + slice.depth as f64 * height;
                let (x, w) = extent(axis, slice);
                places.insert(*place, (x, x + w, top + height / 2.0 - 1.0));
                block(&mut shapes, slice, [x, top, w, height]);
            }
            y += row.depth as f64 * height + 8.0;
        }
        ticks(svg, window.0, marks, axis, y + 2.0, Some(chart_top));
        svg.append(shapes);
        for hops in timeline.flows.values() {
            if is_drawn(hops) {
                arrows(svg, timeline, hops, window, axis, &places);
            }
        }
        alarms(svg, timeline, &rows, axis, [chart_top, y + 18.0])
    }
}

/// Lines from top to bottom where something was called too slow, with what it was
/// below them; returns where that ends.
fn alarms(
    svg: &mut Svg,
    timeline: &Timeline,
    rows: &[Row<'_>],
    axis: &Axis,
    [top, bottom]: [f64; 2],
) -> f64 {
    let alarms = rows.iter().flat_map(|row| &row.alarms);
    let mut alarms: Vec<_> = alarms.map(|place| &timeline.instants[*place]).collect();
    alarms.sort_by_key(|alarm| alarm.time);
    // Where the next label has room.
    let mut free = f64::NEG_INFINITY;
    for alarm in &alarms {
        let x = axis.x(alarm.time);
        svg.line([x, top, x, bottom], "#cf222e", r#"stroke-dasharray="2 2""#);
        let label = alarm_label(alarm);
        let width = text_width(&label, 11.0);
        let begin = x.min(WIDTH - RIGHT - width);
        if begin > free {
            svg.text(begin, bottom + 11.0, "alarm", "", &label);
            free = begin + width + 12.0;
        }
    }
    match alarms.is_empty() {
        true => bottom,
        false => bottom + 16.0,
    }
}

/// What was too slow, by which rule.
fn alarm_label(alarm: &Moment) -> String {
    let micros = |name| alarm.arg(name).and_then(ArgValue::uint);
    let rule = alarm.arg("rule").and_then(ArgValue::text);
    let (Some(rule), Some(value), Some(limit)) = (rule, micros("value_us"), micros("limit_us"))
    else {
        return alarm.name.to_string();
    };
    let limit_ms = limit as f64 / 1e3;
    let value = time(value.saturating_mul(1000));
    format!("{}: {value}, {rule}>{limit_ms}", alarm.name)
}

fn stretched(timeline: &Timeline, rows: &[Row<'_>], (from, to): (u64, u64)) -> Axis {
    let mut moments = vec![from, to];
    let mut needs = Vec::new();
    for slice in rows.iter().flat_map(|row| &row.slices) {
        let slice = &timeline.slices[*slice];
        let begin = slice.begin.clamp(from, to);
        let end = slice.end.unwrap_or(to).clamp(from, to);
        moments.extend([begin, end]);
        needs.push((begin, end, label_width(slice)));
    }
    Axis::stretched(moments, needs, LEFT, CHART)
}

/// A slice with its name and duration, as far as they fit.
fn block(svg: &mut Svg, slice: &TimelineSlice, [x, y, w, height]: [f64; 4]) {
    let extra = r##"rx="3" stroke="#ffffff" stroke-width="1""##;
    let place = [x, y, w, height - 2.0];
    svg.rect(place, color(slice), extra, &tooltip(slice));
    if w < text_width(&slice.name, 11.0) + 4.0 {
        return;
    }
    svg.text(x + 4.0, y + 12.0, "name", "", &slice.name);
    if let Some(duration) = slice.duration()
        && height >= SLICE
    {
        svg.text(x + 4.0, y + 23.5, "time", "", &time(duration));
    }
}

/// Arrows from hop to hop, where both are drawn.
fn arrows(
    svg: &mut Svg,
    timeline: &Timeline,
    hops: &[Hop],
    (from, to): (u64, u64),
    axis: &Axis,
    places: &HashMap<usize, (f64, f64, f64)>,
) {
    let is_request = hops.iter().any(|hop| rows::is_of_a_request(timeline, hop));
    let drawn = hops.iter().filter_map(|hop| match hop.through {
        Through::Begin(place) | Through::End(place) if (from..=to).contains(&hop.time) => {
            Some((place, hop.time, places.get(&place)?))
        }
        _ => None,
    });
    let drawn = drawn.collect::<Vec<_>>();
    for pair in drawn.windows(2) {
        let [(source, _, (_, _, y1)), (_, time, (_, _, y2))] = pair else {
            continue;
        };
        // The arrow leaves where its source ends, or later parts it from its target.
        let leaves = timeline.slices[*source].end.unwrap_or(*time).min(*time);
        let (x1, x2) = (axis.x(leaves), axis.x(*time));
        let bend = ((x2 - x1) / 2.0).max(14.0);
        let d = format!(
            "M{x1:.1} {y1:.1}C{:.1} {y1:.1} {:.1} {y2:.1} {x2:.1} {y2:.1}",
            x1 + bend,
            x2 - bend
        );
        svg.path(
            &d,
            match is_request {
                true => r##"fill="none" stroke="#cf222e" stroke-width="1.6" marker-end="url(#request)""##,
                false => r##"fill="none" stroke="#6e7781" stroke-width="1.2" stroke-dasharray="4 3" marker-end="url(#step)""##,
            },
        );
    }
}

fn even_ticks(from: u64, to: u64) -> Vec<u64> {
    // 1, 2 and 5 times a power of ten, from 10 µs up to 50 s.
    let step = (4..11)
        .flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u64.pow(power)))
        .find(|step| (to - from) / step <= 12)
        .unwrap_or(100_000_000_000);
    (0..)
        .map(|n| from + n * step)
        .take_while(|tick| *tick <= to)
        .collect()
}

fn ticks(svg: &mut Svg, zero: u64, ticks: Vec<u64>, axis: &Axis, y: f64, lines: Option<f64>) {
    let (from, to) = axis.window();
    svg.line([axis.x(from), y, axis.x(to), y], "#d0d7de", "");
    for tick in ticks {
        let x = axis.x(tick);
        let top = lines.unwrap_or(y);
        svg.line([x, top, x, y + 3.0], "#d0d7de", r#"stroke-width="0.7""#);
        svg.text(
            x,
            y + 14.0,
            "tick",
            r#"text-anchor="middle""#,
            &time(tick - zero),
        );
    }
}

/// x and width, at least so wide that it is seen.
fn extent(axis: &Axis, slice: &TimelineSlice) -> (f64, f64) {
    let (_, last) = axis.window();
    let x = axis.x(slice.begin);
    (x, (axis.x(slice.end.unwrap_or(last)) - x).max(1.0))
}

/// By process, and lighter for what holds others.
fn color(slice: &TimelineSlice) -> &'static str {
    let is_part = slice.depth > 0;
    match (&*slice.category, is_part) {
        ("frontend", false) => "#b6d7ff",
        ("frontend", true) => "#80b8ff",
        ("core", false) => "#b4e8c1",
        ("core", true) => "#7fd396",
        ("worker", false) => "#ffd8b0",
        ("worker", true) => "#ffb56b",
        _ => "#d8dee4",
    }
}

fn tooltip(slice: &TimelineSlice) -> String {
    let duration = slice.duration().map_or("never ended".to_owned(), time);
    let args = slice.args.iter();
    let args = args.map(|arg| format!("\n{} = {}", arg.name, arg.value));
    format!("{} ({duration}){}", slice.name, args.collect::<String>())
}

fn label_width(slice: &TimelineSlice) -> f64 {
    let duration = slice.duration().map_or(0.0, |d| text_width(&time(d), 9.5));
    text_width(&slice.name, 11.0).max(duration) + 9.0
}

/// Sans-serif letters are a bit more than half as wide as high.
fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.56
}

/// What the process is called, without what all are called.
fn short(process: &Track) -> &str {
    let name = process.name.as_str();
    name.strip_prefix("nano-serve ")
        .or_else(|| name.strip_prefix("nano-"))
        .unwrap_or(name)
}

fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{:.1} µs", ns as f64 / 1e3),
        10_000..1_000_000 => format!("{:.0} µs", ns as f64 / 1e3),
        1_000_000..10_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        10_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}
