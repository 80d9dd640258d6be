//! Draws the screen.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table};
use serde_json::Value;

use super::look::Screen;

/// Lines of the panels that are left out on a low screen.
const PANELS: u16 = 9;
/// Minimum lines of the other parts.
const REST: u16 = 20;

pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let panels = if frame.area().height >= REST + PANELS {
        PANELS
    } else {
        0
    };
    let [head, curve, workers, middle, changes] = Layout::vertical([
        Constraint::Length(3),
        Constraint::Length(6),
        Constraint::Min(5),
        Constraint::Length(panels),
        Constraint::Length(7),
    ])
    .areas(frame.area());
    let [hottest, late] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(middle);
    frame.render_widget(Paragraph::new(summary(screen)), head);
    draw_curve(frame, screen, curve);
    draw_workers(frame, screen, workers);
    if panels > 0 {
        draw_hottest(frame, screen, hottest);
        draw_late(frame, screen, late);
    }
    draw_changes(frame, screen, changes);
}

fn summary(screen: &Screen) -> Vec<Line<'static>> {
    let policy = &screen.policy;
    let first = format!(
        "tailroute at {}   policy {} (revision {})   {} workers",
        screen.router,
        text(&policy["settings"]["policy"]),
        policy["revision"],
        screen.workers.len(),
    );
    let second = match &screen.error {
        Some(error) => Line::styled(error.clone(), Style::new().fg(Color::Red)),
        None => Line::raw(objective(&screen.objective)),
    };
    vec![
        Line::styled(first, Style::new().add_modifier(Modifier::BOLD)),
        second,
    ]
}

/// Formats each class of turns with its objective and the share that met it.
fn objective(objective: &Value) -> String {
    let wanted = objective["share"].as_f64().unwrap_or(0.0) * 100.0;
    let mut out = format!("in time, of {wanted:.1} % wanted:");
    for class in objective["classes"].as_array().into_iter().flatten() {
        let [met, missed] = ["met", "missed"].map(|key| class[key].as_f64().unwrap_or(0.0));
        if met + missed > 0.0 {
            let share = met / (met + missed) * 100.0;
            out.push_str(&format!(
                "  {} {share:.2} % ({missed:.0} late)",
                text(&class["class"])
            ));
        }
    }
    out
}

fn draw_curve(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let title = match screen.percentiles {
        Some([p50, p95, p99]) => format!(" TTFT p95; last p50 {p50:.0}, p95 {p95:.0}, p99 {p99:.0} ms "),
        None => " TTFT p95; no turns yet ".to_owned(),
    };
    let width = usize::from(area.width.saturating_sub(2));
    let skip = screen.p95_ms.len().saturating_sub(width);
    let data: Vec<u64> = screen.p95_ms.iter().skip(skip).copied().collect();
    let curve = Sparkline::default()
        .block(Block::bordered().title(title))
        .data(data)
        .style(Style::new().fg(Color::Cyan));
    frame.render_widget(curve, area);
}

fn draw_workers(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    // The busiest workers first, because a large fleet does not fit.
    let mut workers: Vec<&Value> = screen.workers.iter().collect();
    let wait = |worker: &Value| worker["wait_ms"].as_f64().unwrap_or(0.0);
    workers.sort_by(|a, b| wait(b).total_cmp(&wait(a)));
    let rows = workers.iter().map(|worker| row(worker));
    let widths = [
        Constraint::Min(20),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(10),
        Constraint::Length(7),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(9),
    ];
    let header = [
        "worker",
        "state",
        "in flight",
        "wait ms",
        "busy",
        "α",
        "ξ",
        "cache",
        "breaker",
    ];
    let table = Table::new(rows, widths)
        .header(Row::new(header).style(Style::new().add_modifier(Modifier::BOLD)))
        .block(Block::bordered().title(" workers, longest wait first "));
    frame.render_widget(table, area);
}

fn row(worker: &Value) -> Row<'static> {
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let state = text(&worker["state"]);
    let colour = match state.as_str() {
        "ready" => Color::Reset,
        "unwell" => Color::Red,
        _ => Color::Yellow,
    };
    let capacity = number(&worker["capacity_tokens"]).max(1.0);
    Row::new([
        Cell::from(text(&worker["name"])),
        Cell::from(state),
        Cell::from(worker["in_flight"].to_string()),
        Cell::from(format!("{:.1}", number(&worker["wait_ms"]))),
        Cell::from(format!("{:.0} %", number(&worker["utilisation"]) * 100.0)),
        Cell::from(format!("{:.4}", number(&worker["cost"]["alpha_ms_per_token"]))),
        Cell::from(format!("{:.0}", number(&worker["xi_tokens"]))),
        Cell::from(format!(
            "{:.0} %",
            number(&worker["held_tokens"]) / capacity * 100.0
        )),
        Cell::from(text(&worker["breaker"])),
    ])
    .style(Style::new().fg(colour))
}

fn draw_hottest(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let rows = screen.hottest.iter().map(|hot| {
        Row::new([
            hot.prefix.clone(),
            hot.tokens.map_or("?".to_owned(), |tokens| tokens.to_string()),
            hot.forks.to_string(),
            hot.holders.to_string(),
            hot.worker.clone(),
        ])
    });
    let widths = [
        Constraint::Length(16),
        Constraint::Length(8),
        Constraint::Length(5),
        Constraint::Length(7),
        Constraint::Min(10),
    ];
    let header = Row::new(["prefix", "tokens", "forks", "holders", "longest on"]);
    panel(
        frame,
        area,
        " hottest prefixes: most shared, then most recently used ",
        header,
        widths,
        rows,
    );
}

fn draw_late(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let title = match &screen.late {
        None => " late turns: the router keeps no decisions (explain.max_bytes) ",
        Some(none) if none.is_empty() => " late turns: none among the stored decisions ",
        Some(_) => " late turns, newest first; ctl explain REQUEST says more ",
    };
    let rows = screen.late.iter().flatten().map(|decision| {
        let outcome = &decision["outcome"];
        let ms = |value: &Value| value.as_f64().unwrap_or(0.0);
        let ago_s = (screen.now_unix_ms - ms(&decision["arrived_unix_ms"])).max(0.0) / 1e3;
        Row::new([
            ago(ago_s),
            format!(
                "{:.0} of {:.0} ms",
                ms(&outcome["ttft_ms"]),
                ms(&decision["objective_ms"])
            ),
            text(&outcome["cause"]),
            text(&decision["worker"]),
            text(&decision["request"]),
        ])
    });
    let widths = [
        Constraint::Length(5),
        Constraint::Length(16),
        Constraint::Length(8),
        Constraint::Length(10),
        Constraint::Min(10),
    ];
    let header = Row::new(["ago", "first token", "cause", "worker", "request"]);
    panel(frame, area, title, header, widths, rows);
}

/// Formats an age with fitting precision.
fn ago(seconds: f64) -> String {
    match seconds {
        short if short < 99.5 => format!("{short:.0} s"),
        middling if middling < 99.5 * 60.0 => format!("{:.0} m", middling / 60.0),
        long => format!("{:.0} h", long / 3600.0),
    }
}

fn panel<'a>(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &'a str,
    header: Row<'a>,
    widths: [Constraint; 5],
    rows: impl Iterator<Item = Row<'a>>,
) {
    let table = Table::new(rows, widths)
        .header(header.style(Style::new().add_modifier(Modifier::BOLD)))
        .block(Block::bordered().title(title));
    frame.render_widget(table, area);
}

fn draw_changes(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let line = |entry: &Value| {
        let who = text(&entry["who"]["name"]);
        let (what, outcome) = (text(&entry["action"]), text(&entry["outcome"]));
        let (of, why) = (text(&entry["target"]), text(&entry["why"]));
        Line::raw(format!("{outcome:<8} {what:<20} {of:<20} {who}: {why}"))
    };
    let lines: Vec<Line<'_>> = screen.changes.iter().map(line).collect();
    let changes = Paragraph::new(lines).block(Block::bordered().title(" changes, newest first; q ends "));
    frame.render_widget(changes, area);
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}
