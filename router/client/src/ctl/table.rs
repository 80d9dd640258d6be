use std::fmt::Write as _;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// A table whose columns are as wide as their longest cell.
#[derive(Debug)]
pub(super) struct TextTable {
    columns: Vec<(String, Align)>,
    lines: Vec<TableLine>,
}

#[derive(Debug)]
enum TableLine {
    Row(Vec<String>),
    Note(String),
}

impl TextTable {
    pub(super) fn new(columns: &[(&str, Align)]) -> Self {
        let columns = columns.iter().map(|(name, align)| ((*name).to_owned(), *align));
        Self {
            columns: columns.collect(),
            lines: Vec::new(),
        }
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.lines.push(TableLine::Row(cells.into_iter().collect()));
    }

    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.lines.push(TableLine::Note(text.into()));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns the lines of the table, without a newline at the end.
    pub(super) fn text(&self) -> String {
        let widths: Vec<usize> = (0..self.columns.len()).map(|at| self.width(at)).collect();
        let names: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let mut out = self.aligned(&names, &widths);
        for line in &self.lines {
            out.push('\n');
            match line {
                TableLine::Row(cells) => out.push_str(&self.aligned(cells, &widths)),
                TableLine::Note(text) => drop(write!(out, "    {text}")),
            }
        }
        out
    }

    fn width(&self, at: usize) -> usize {
        let cells = self.lines.iter().filter_map(|line| match line {
            TableLine::Row(cells) => cells.get(at),
            TableLine::Note(_) => None,
        });
        let name = self.columns.get(at).map(|(name, _)| name);
        let lengths = cells.chain(name).map(|cell| cell.chars().count());
        lengths.max().unwrap_or(0)
    }

    fn aligned(&self, cells: &[String], widths: &[usize]) -> String {
        let mut out = String::new();
        for ((cell, width), (_, align)) in cells.iter().zip(widths).zip(&self.columns) {
            let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
            match align {
                Align::Left => drop(write!(out, "{cell}{padding}  ")),
                Align::Right => drop(write!(out, "{padding}{cell}  ")),
            }
        }
        out.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_their_longest_cell() {
        let mut table = TextTable::new(&[
            ("worker", Align::Left),
            ("α", Align::Right),
            ("note", Align::Left),
        ]);
        table.row(["a-long-name", "0.05", "x"].map(str::to_owned));
        table.note("its own line");
        table.row(["b", "10", ""].map(str::to_owned));
        assert_eq!(
            table.text(),
            "worker          α  note\na-long-name  0.05  x\n    its own line\nb              10"
        );
    }
}
