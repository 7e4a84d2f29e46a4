//! How the tables are laid out. Nothing here reads memory or clocks.

use std::path::Path;

use bytesize::ByteSize;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Sparkline, Table, Wrap};

use super::Look;
use super::keys::Choice;
use super::sections::{Part, Section, age, percent, section, size_of};
use crate::watch::findings::Level;
use crate::watch::history::Rates;

/// A look older than this is not of now.
const OLD_MS: u64 = 10_000;
const KEYS: &str = "q quit, w n d t p l e one table, o all, arrows scroll";

/// What is drawn.
#[derive(Debug)]
pub(super) struct Screen<'s> {
    pub(super) region: &'s Path,
    pub(super) now_ms: u64,
    /// None before the first one.
    pub(super) look: Option<&'s Look>,
    /// Why the last look failed.
    pub(super) error: Option<&'s str>,
}

impl Screen<'_> {
    pub(super) fn draw(&self, frame: &mut Frame<'_>, choice: &mut Choice) {
        let note = self.note();
        let note_lines = if note.is_some() { 2 } else { 0 };
        let [head, note_area, rest] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(note_lines),
            Constraint::Fill(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.head(), head);
        if let Some(note) = note {
            let style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
            let note = Paragraph::new(note).style(style).wrap(Wrap { trim: true });
            frame.render_widget(note, note_area);
        }
        let Some(look) = self.look else { return };
        match choice.part {
            Some(part) => {
                let section = section(part, look, self.now_ms);
                choice.keep_within(section.rows.len(), rows_in(rest, &section));
                draw_section(frame, rest, &section, choice.first);
            }
            None => self.draw_all(frame, rest, look, choice),
        }
    }

    fn head(&self) -> Text<'static> {
        let mut first = format!("rackline top: {}", self.region.display());
        let mut second = KEYS.to_owned();
        if let Some(look) = self.look {
            let status = &look.seen.status;
            let used = status.chunks - status.chunks_free;
            let ago = age(self.now_ms.saturating_sub(look.at_ms));
            first.push_str(&format!(
                ", {}, {used} of {} chunks in use, {}, looked {ago} ago",
                ByteSize(status.region_bytes),
                status.chunks,
                manager(look),
            ));
        } else {
            second = format!("looking at the rack; {KEYS}");
        }
        Text::from(vec![
            Line::styled(first, Style::new().add_modifier(Modifier::BOLD)),
            Line::styled(second, Style::new().fg(Color::DarkGray)),
        ])
    }

    /// Why what is shown is not of now.
    fn note(&self) -> Option<String> {
        if let Some(error) = self.error {
            return Some(format!("The rack cannot be looked at: {error}"));
        }
        let age_ms = self.now_ms.saturating_sub(self.look?.at_ms);
        (age_ms > OLD_MS)
            .then(|| format!("No look for {}: what you see is from then.", age(age_ms)))
    }

    fn draw_all(&self, frame: &mut Frame<'_>, area: Rect, look: &Look, choice: &mut Choice) {
        let of = |part| section(part, look, self.now_ms);
        let (wrong, nodes, drives) = (of(Part::Wrong), of(Part::Nodes), of(Part::Drives));
        let lines = |section: &Section, most: usize| {
            // With its frame, and the names of the columns.
            let names = usize::from(section.has_names() && !section.rows.is_empty());
            u16::try_from(section.rows.len().min(most).max(1) + names + 1).unwrap_or(u16::MAX)
        };
        let [wrong_area, rates_area, nodes_area, drives_area, low_area] = Layout::vertical([
            Constraint::Length(lines(&wrong, 3)),
            Constraint::Length(4),
            Constraint::Length(lines(&nodes, usize::from(area.height / 2))),
            Constraint::Length(lines(&drives, 4)),
            Constraint::Min(4),
        ])
        .areas(area);
        draw_section(frame, wrong_area, &wrong, 0);
        draw_rates(frame, rates_area, &look.history);
        choice.keep_within(nodes.rows.len(), rows_in(nodes_area, &nodes));
        draw_section(frame, nodes_area, &nodes, choice.first);
        draw_section(frame, drives_area, &drives, 0);
        let [tenants, prefixes, events] = Layout::horizontal([
            Constraint::Length(36),
            Constraint::Length(45),
            Constraint::Fill(1),
        ])
        .areas(low_area);
        let places = [(Part::Tenants, tenants), (Part::Prefixes, prefixes), (Part::Events, events)];
        for (part, area) in places {
            draw_section(frame, area, &of(part), 0);
        }
    }
}

fn manager(look: &Look) -> String {
    match &look.seen.status.lock_manager {
        Some(manager) if manager.serving && manager.alive => {
            format!("lock manager on node {}", manager.node)
        }
        Some(_) => "lock manager does not work".to_owned(),
        None => "no lock manager".to_owned(),
    }
}

impl Section {
    fn has_names(&self) -> bool {
        self.columns.iter().any(|column| !column.name.is_empty())
    }
}

fn rows_in(area: Rect, section: &Section) -> usize {
    usize::from(area.height.saturating_sub(1 + u16::from(section.has_names())))
}

fn style_of(level: Option<Level>) -> Style {
    match level {
        Some(Level::Bad) => Style::new().fg(Color::Red),
        Some(Level::Warning) => Style::new().fg(Color::Yellow),
        Some(Level::Note) | None => Style::new(),
    }
}

fn draw_section(frame: &mut Frame<'_>, area: Rect, section: &Section, first: usize) {
    let rows = rows_in(area, section);
    let shown = section.rows.len().saturating_sub(first).min(rows);
    let mut title = section.title.clone();
    if shown < section.rows.len() {
        title.push_str(&format!(": {} to {} of {}", first + 1, first + shown, section.rows.len()));
    }
    let block = Block::new().borders(Borders::TOP).title(title);
    if section.rows.is_empty() {
        frame.render_widget(Paragraph::new(section.none).block(block), area);
        return;
    }
    let align = |column: &super::sections::Column| match column.is_number {
        true => Alignment::Right,
        false => Alignment::Left,
    };
    let cell = |text: String, column| Cell::new(Text::from(text).alignment(align(column)));
    let cells = section.rows.iter().skip(first).take(shown).map(|row| {
        let cells = row.cells.iter().zip(section.columns);
        let cells = cells.map(|(text, column)| cell(text.clone(), column));
        ratatui::widgets::Row::new(cells).style(style_of(row.level))
    });
    let widths = section.columns.iter().map(|column| match column.width {
        0 => Constraint::Fill(1),
        width => Constraint::Length(width),
    });
    let mut table = Table::new(cells, widths).block(block);
    if section.has_names() {
        let names = section.columns.iter().map(|column| cell(column.name.to_owned(), column));
        let names = ratatui::widgets::Row::new(names);
        table = table.header(names.style(Style::new().fg(Color::DarkGray)));
    }
    frame.render_widget(table, area);
}

/// Four figures with their last minutes.
fn draw_rates(frame: &mut Frame<'_>, area: Rect, history: &[Rates]) {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "heights of bars, never below 0"
    )]
    let height = |value: f64| value as u64;
    let last = history.last();
    let bytes = |name: &str, part: fn(&Rates) -> f64| {
        let now = last.map_or_else(|| "-".to_owned(), |rates| size_of(part(rates)));
        let bars: Vec<u64> = history.iter().map(|rates| height(part(rates))).collect();
        (format!("{name} {now}/s"), bars, None)
    };
    let hits = history.iter().map(|rates| height(rates.hit_rate.unwrap_or(0.0) * 100.0));
    let hit_rate = percent(last.and_then(|rates| rates.hit_rate));
    let figures = [
        (format!("Hits {hit_rate}"), hits.collect(), Some(100)),
        bytes("Fetched", |rates| rates.fetched_bytes),
        bytes("Published", |rates| rates.published_bytes),
        bytes("Restored", |rates| rates.restored_bytes),
    ];
    let areas: [Rect; 4] = Layout::horizontal([Constraint::Fill(1); 4]).spacing(1).areas(area);
    for ((title, bars, most), area) in figures.into_iter().zip(areas) {
        let room = usize::from(area.width);
        let latest = &bars[bars.len().saturating_sub(room)..];
        let mut line = Sparkline::default()
            .data(latest)
            .style(Style::new().fg(Color::Cyan))
            .block(Block::new().borders(Borders::TOP).title(title));
        if let Some(most) = most {
            line = line.max(most);
        }
        frame.render_widget(line, area);
    }
}
