use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table};
use serde_json::Value;

use super::changes::AuditedChange;
use super::help;
use super::look::Screen;
use crate::ctl::format::{list, number, text};

/// Columns from which on a screen has room for all columns of all tables.
const WIDE: u16 = 110;
/// Time without an answer from which on the screen says so.
const SILENT: Duration = Duration::from_secs(2);
/// Lines of a panel that are no rows: its borders and its header.
const FRAME: u16 = 3;

/// Returns the lines of the summary, the curve, the panels and the changes. The workers have the rest, at least five.
fn heights(screen: u16) -> [u16; 4] {
    match screen {
        29.. => [3, 6, 9, 7],
        24.. => [2, 4, 7, 6],
        _ => [2, 4, 0, 6],
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let [head, curve, panels, changes] = heights(frame.area().height);
    let [head, curve, workers, middle, changes] = Layout::vertical([
        Constraint::Length(head),
        Constraint::Length(curve),
        Constraint::Min(5),
        Constraint::Length(panels),
        Constraint::Length(changes),
    ])
    .areas(frame.area());
    let prefixes = if frame.area().width >= WIDE { 44 } else { 30 };
    let [hottest, late] =
        Layout::horizontal([Constraint::Length(prefixes), Constraint::Fill(1)]).areas(middle);
    frame.render_widget(Paragraph::new(summary(screen)), head);
    draw_curve(frame, screen, curve);
    draw_workers(frame, screen, workers);
    if panels > 0 {
        draw_hottest(frame, screen, hottest);
        draw_late(frame, screen, late);
    }
    draw_changes(frame, screen, changes);
    if screen.help {
        help::draw(frame);
    }
}

fn summary(screen: &Screen) -> Vec<Line<'static>> {
    let policy = &screen.policy;
    let first = format!(
        "tailroute at {}   policy {} (revision {})   {} workers",
        screen.router,
        text(&policy["settings"], "policy"),
        policy["revision"],
        screen.workers.len(),
    );
    let red = Style::new().fg(Color::Red);
    let second = match (&screen.error, screen.overload.as_object()) {
        _ if screen.silent_for >= SILENT => {
            let silent = screen.silent_for.as_secs();
            Line::styled(format!("{} has not answered for {silent} s", screen.router), red)
        }
        (Some(error), _) => Line::styled(error.clone(), red),
        (None, Some(_)) => Line::styled(overload(&screen.overload), red),
        (None, None) => Line::raw(objective(&screen.objective)),
    };
    vec![
        Line::styled(first, Style::new().add_modifier(Modifier::BOLD)),
        second,
    ]
}

fn overload(overload: &Value) -> String {
    format!(
        "overloaded: waits {:.1} s on {} of {} workers; {} late, {} refused since then",
        number(overload, "wait_ms") / 1e3,
        overload["workers_over"],
        overload["workers_ready"],
        overload["late"],
        overload["refused"],
    )
}

/// Formats each class of turns with its objective and the share within it.
fn objective(objective: &Value) -> String {
    let wanted = number(objective, "share") * 100.0;
    let mut out = format!("within objective since the start, of {wanted:.1} % wanted:");
    for class in list(objective, "classes") {
        let [met, missed] = ["met", "missed"].map(|key| number(class, key));
        if met + missed > 0.0 {
            let share = met / (met + missed) * 100.0;
            out.push_str(&format!(
                "  {} {share:.2} % ({missed:.0} late)",
                text(class, "class")
            ));
        }
    }
    out
}

fn draw_curve(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let width = usize::from(area.width.saturating_sub(2));
    let skip = screen.p95_ms.len().saturating_sub(width);
    let data: Vec<u64> = screen.p95_ms.iter().skip(skip).copied().collect();
    let highest = data.iter().max().copied().unwrap_or(0);
    let title = match screen.percentiles {
        Some([p50, p95, p99]) => {
            format!(" TTFT p95, up to {highest} ms; last p50 {p50:.0}, p95 {p95:.0}, p99 {p99:.0} ms ")
        }
        None => " TTFT p95; no turns yet ".to_owned(),
    };
    let curve = Sparkline::default()
        .block(Block::bordered().title(title))
        .data(data)
        .style(Style::new().fg(Color::Cyan));
    frame.render_widget(curve, area);
}

fn draw_workers(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    // The busiest workers first, because a large fleet does not fit.
    let mut workers: Vec<&Value> = screen.workers.iter().collect();
    workers.sort_by(|a, b| number(b, "wait_ms").total_cmp(&number(a, "wait_ms")));
    let rows = workers.iter().map(|worker| row(worker));
    let widths = match area.width {
        WIDE.. => [20, 9, 9, 10, 7, 9, 9, 8, 9],
        _ => [12, 9, 9, 7, 7, 6, 6, 5, 9],
    };
    let [name, rest @ ..] = widths;
    let widths = std::iter::once(Constraint::Min(name)).chain(rest.map(Constraint::Length));
    let header = vec![
        "worker",
        "state",
        "in flight",
        "wait ms",
        "prefill",
        "α",
        "ξ",
        "cache",
        "breaker",
    ];
    let title = workers_title(workers.len(), area);
    panel(frame, area, title, header, widths.collect(), rows);
}

/// Says how many workers the panel has no room for.
fn workers_title(workers: usize, area: Rect) -> String {
    let shown = usize::from(area.height.saturating_sub(FRAME));
    match workers.checked_sub(shown) {
        None | Some(0) => " workers, longest wait first ".to_owned(),
        Some(hidden) => {
            format!(" workers, longest wait first; {hidden} of {workers} hidden, a higher window shows more ")
        }
    }
}

fn row(worker: &Value) -> Row<'static> {
    let mut state = text(worker, "state").to_owned();
    if let (true, Some(factor)) = (state == "ready", worker["slow"]["factor"].as_f64()) {
        state = format!("slow {factor:.1}×");
    }
    let colour = match state.as_str() {
        "ready" => Color::Reset,
        "unwell" => Color::Red,
        _ => Color::Yellow,
    };
    let capacity = number(worker, "capacity_tokens").max(1.0);
    Row::new([
        Cell::from(text(worker, "name").to_owned()),
        Cell::from(state),
        Cell::from(worker["in_flight"].to_string()),
        Cell::from(format!("{:.1}", number(worker, "wait_ms"))),
        Cell::from(format!("{:.0} %", number(worker, "utilisation") * 100.0)),
        Cell::from(format!("{:.4}", number(&worker["cost"], "alpha_ms_per_token"))),
        Cell::from(format!("{:.0}", number(worker, "xi_tokens"))),
        Cell::from(format!(
            "{:.0} %",
            number(worker, "held_tokens") / capacity * 100.0
        )),
        Cell::from(text(worker, "breaker").to_owned()),
    ])
    .style(Style::new().fg(colour))
}

fn draw_hottest(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let is_wide = frame.area().width >= WIDE;
    let rows = screen.hottest.iter().map(|hot| {
        let tokens = hot.tokens.map_or("?".to_owned(), |tokens| tokens.to_string());
        let (prefix, forks, worker) = (hot.prefix.clone(), hot.forks.to_string(), hot.worker.clone());
        match is_wide {
            true => Row::new([prefix, tokens, forks, hot.holders.to_string(), worker]),
            false => Row::new([prefix, tokens, forks, worker]),
        }
    });
    let min = Constraint::Min;
    let length = Constraint::Length;
    let (title, header, widths) = match is_wide {
        true => (
            " hottest prefixes: shared, then newest ",
            vec!["prefix", "tokens", "forks", "holders", "longest on"],
            vec![length(8), length(8), length(5), length(7), min(10)],
        ),
        false => (
            " hottest prefixes ",
            vec!["prefix", "tokens", "forks", "on"],
            vec![length(8), length(6), length(5), min(6)],
        ),
    };
    panel(frame, area, title, header, widths, rows);
}

fn draw_late(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let title = match &screen.late {
        None => " late turns: the router keeps no decisions (explain.max_bytes) ",
        Some(none) if none.is_empty() => " late turns: none among the stored decisions ",
        Some(_) => " late turns; ctl explain ID, or its beginning ",
    };
    let widths = match frame.area().width {
        WIDE.. => [5, 13, 8, 10],
        _ => [4, 11, 7, 8],
    };
    // Each column is followed by a space, and the borders take two.
    let others: u16 = widths.iter().map(|width| width + 1).sum();
    let request = usize::from(area.width.saturating_sub(others + 2));
    let rows = screen.late.iter().flatten().map(|decision| {
        let outcome = &decision["outcome"];
        Row::new([
            ago(screen, &decision["arrived_unix_ms"]),
            format!(
                "{:.0}/{:.0} ms",
                number(outcome, "ttft_ms"),
                number(decision, "objective_ms")
            ),
            text(outcome, "cause").replace("_worker", ""),
            text(decision, "worker").to_owned(),
            cut(text(decision, "request"), request),
        ])
    });
    let widths = widths.map(Constraint::Length);
    let widths = widths.into_iter().chain([Constraint::Min(12)]).collect();
    let header = vec!["ago", "first token", "cause", "worker", "request"];
    panel(frame, area, title, header, widths, rows);
}

/// Cuts an id that does not fit, and marks the cut. Its beginning is enough for `ctl explain`.
fn cut(id: &str, width: usize) -> String {
    match id.char_indices().nth(width.saturating_sub(1)) {
        Some((at, _)) if id.chars().count() > width => format!("{}…", &id[..at]),
        _ => id.to_owned(),
    }
}

fn ago(screen: &Screen, unix_ms: &Value) -> String {
    let then = unix_ms.as_f64().unwrap_or(screen.now_unix_ms);
    match (screen.now_unix_ms - then).max(0.0) / 1e3 {
        short if short < 99.5 => format!("{short:.0} s"),
        middling if middling < 99.5 * 60.0 => format!("{:.0} m", middling / 60.0),
        long => format!("{:.0} h", long / 3600.0),
    }
}

fn panel<'a>(
    frame: &mut Frame<'_>,
    area: Rect,
    title: impl Into<Line<'a>>,
    header: Vec<&'a str>,
    widths: Vec<Constraint>,
    rows: impl Iterator<Item = Row<'a>>,
) {
    let table = Table::new(rows, widths)
        .header(Row::new(header).style(Style::new().add_modifier(Modifier::BOLD)))
        .block(Block::bordered().title(title));
    frame.render_widget(table, area);
}

fn draw_changes(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let line = |AuditedChange { entry, count }: &AuditedChange| {
        let who = text(&entry["who"], "name");
        let (what, of, why) = (text(entry, "action"), text(entry, "target"), text(entry, "why"));
        let outcome = text(entry, "outcome");
        let outcome = match count {
            1 => outcome.to_owned(),
            count => format!("{outcome} ×{count}"),
        };
        let age = ago(screen, &entry["at_unix_ms"]);
        Line::raw(format!("{age:>5} {outcome:<11} {what:<16} {of:<12} {who}: {why}"))
    };
    let lines: Vec<Line<'_>> = screen.changes.iter().map(line).collect();
    let title = " changes, newest first; ? helps, q ends ";
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(title)), area);
}
