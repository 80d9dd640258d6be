use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph};

const TEXT: &str = "\
?  this help        q, Esc, Control-C  end

workers
  state    slow 7.9×: takes 7.9 times as long as its baseline
  wait ms  predicted wait before a new turn's prefill
  prefill  share of its time spent on prefill
  α        milliseconds per uncached token
  ξ        uncached tokens that fit in the objective
  cache    share of its cache that is believed to be in use
  breaker  closed: all turns, half_open: one turn, open: none
hottest prefixes
  tokens   of the longest copy; forks: known continuations
late turns
  cause    queue, miss, slow, engine, network, prompt, or whole
  request  tailroute ctl explain takes the beginning of an id
changes
  ×12      refusals of one operation and caller, counted in one line";
const WIDTH: u16 = 70;

pub(super) fn draw(frame: &mut Frame<'_>) {
    let lines: Vec<Line<'_>> = TEXT.lines().map(Line::raw).collect();
    let height = lines.len() as u16 + 2;
    let middle = |length, across: u16| {
        let margin = across.saturating_sub(length) / 2;
        [
            Constraint::Length(margin),
            Constraint::Length(length),
            Constraint::Fill(1),
        ]
    };
    let area = frame.area();
    let [_, area, _] = Layout::vertical(middle(height, area.height)).areas(area);
    let [_, area, _] = Layout::horizontal(middle(WIDTH, area.width)).areas(area);
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(" help; ? closes it ");
    frame.render_widget(Paragraph::new(lines).block(block), area);
}
