//! A table with a header row, for the terminal and as Markdown.

use std::fmt::Write;

use anstyle::Style;

/// A table. Its first column is left-aligned, the others are right-aligned.
#[derive(Clone, Debug)]
pub struct Table {
    title: String,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns an empty table with these columns.
    pub fn new(title: impl Into<String>, heads: &[&str]) -> Self {
        Self {
            title: title.into(),
            rows: vec![heads.iter().map(|head| (*head).to_owned()).collect()],
        }
    }

    /// Adds a row.
    pub fn add(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// Prints the table.
    pub fn print(&self) {
        let (title, dim) = (Style::new().bold(), Style::new().dimmed());
        anstream::println!("\n  {title}{}{title:#}", self.title);
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = self.width(column);
                let _ = match column {
                    0 => write!(line, "{cell:<width$}"),
                    _ => write!(line, "  {cell:>width$}"),
                };
            }
            match number {
                0 => anstream::println!("    {dim}{line}{dim:#}"),
                _ => anstream::println!("    {line}"),
            }
        }
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    }

    /// Returns the table as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("**{}**\n\n", self.title);
        for (number, row) in self.rows.iter().enumerate() {
            let _ = writeln!(text, "| {} |", row.join(" | "));
            if number == 0 {
                let _ = writeln!(text, "|---|{}", "---:|".repeat(row.len() - 1));
            }
        }
        text
    }
}
