//! What the reader of the screen chose to see.

use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::sections::Part;

/// What follows from a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    Quit,
    /// The screen is to be drawn anew.
    Draw,
    Nothing,
}

/// What is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Choice {
    /// One table on the whole screen; none for all of them.
    pub(super) part: Option<Part>,
    /// Rows above the first one that is shown: of the part, or of the nodes.
    pub(super) first: usize,
    /// Rows that there was room for, when they were drawn last.
    pub(super) rows: usize,
}

impl Choice {
    /// Takes an event of the terminal.
    pub(super) fn take(&mut self, event: &Event) -> Next {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.pressed(*key),
            Event::Resize(..) => Next::Draw,
            _ => Next::Nothing,
        }
    }

    fn pressed(&mut self, key: KeyEvent) -> Next {
        let page = self.rows.max(1);
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Next::Quit;
            }
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('o') | KeyCode::Esc => (self.part, self.first) = (None, 0),
            KeyCode::Up | KeyCode::Char('k') => self.first = self.first.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.first += 1,
            KeyCode::PageUp => self.first = self.first.saturating_sub(page),
            KeyCode::PageDown => self.first += page,
            KeyCode::Home => self.first = 0,
            KeyCode::Char(letter) => match Part::of(letter) {
                Some(part) => (self.part, self.first) = (Some(part), 0),
                None => return Next::Nothing,
            },
            _ => return Next::Nothing,
        }
        Next::Draw
    }

    /// Keeps the last of `all` rows on the screen, where `rows` have room.
    pub(super) fn keep_within(&mut self, all: usize, rows: usize) {
        self.rows = rows;
        self.first = self.first.min(all.saturating_sub(rows));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(code: KeyCode) -> Event {
        Event::Key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn keys_choose_a_part_and_scroll_in_it() {
        let mut choice = Choice::default();
        assert_eq!(choice.take(&key(KeyCode::Char('n'))), Next::Draw);
        choice.keep_within(32, 10);
        assert_eq!((choice.part, choice.first), (Some(Part::Nodes), 0));
        choice.take(&key(KeyCode::PageDown));
        choice.take(&key(KeyCode::Down));
        assert_eq!(choice.first, 11);
        choice.take(&key(KeyCode::PageDown));
        choice.take(&key(KeyCode::PageDown));
        choice.keep_within(32, 10);
        assert_eq!(choice.first, 22, "the last row stays on the screen");
        choice.keep_within(3, 10);
        assert_eq!(choice.first, 0);
        choice.take(&key(KeyCode::Up));
        assert_eq!(choice.take(&key(KeyCode::Esc)), Next::Draw);
        assert_eq!((choice.part, choice.first), (None, 0));
        assert_eq!(choice.take(&key(KeyCode::Char('z'))), Next::Nothing);
        assert_eq!(choice.take(&key(KeyCode::Char('q'))), Next::Quit);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(choice.take(&Event::Key(control_c)), Next::Quit);
        assert_eq!(choice.take(&Event::Resize(80, 24)), Next::Draw);
    }
}
