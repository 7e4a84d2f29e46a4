//! The operator's pages, beside the page of the rack, so that a finding leads to what to do without
//! another host: the Markdown files of `deploy/docs` as HTML.

use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, TagEnd, html};

/// Name and text of each page.
const PAGES: [(&str, &str); 9] = [
    ("agent.md", include_str!("../../../docs/agent.md")),
    ("first-rack.md", include_str!("../../../docs/first-rack.md")),
    ("limits.md", include_str!("../../../docs/limits.md")),
    ("metrics.md", include_str!("../../../docs/metrics.md")),
    ("operations.md", include_str!("../../../docs/operations.md")),
    ("page.md", include_str!("../../../docs/page.md")),
    ("security.md", include_str!("../../../docs/security.md")),
    ("sizing.md", include_str!("../../../docs/sizing.md")),
    ("story.md", include_str!("../../../docs/story.md")),
];

/// The page `name` as the inner part of an HTML body.
pub(super) fn body(name: &str) -> Option<String> {
    let (_, text) = PAGES.iter().find(|(its, _)| *its == name)?;
    let mut events: Vec<_> = Parser::new_ext(text, Options::ENABLE_TABLES).collect();
    name_headings(&mut events);
    let mut is_link = false;
    let kept = events.into_iter().filter_map(|event| match event {
        Event::Start(Tag::Link { ref dest_url, .. }) => {
            is_link = is_served(dest_url);
            is_link.then_some(event)
        }
        Event::End(TagEnd::Link) => is_link.then_some(event),
        Event::Html(text) | Event::InlineHtml(text) => Some(Event::Text(text)),
        event => Some(event),
    });
    let mut body = String::new();
    html::push_html(&mut body, kept);
    Some(body)
}

/// Pages link to files of the project, too. Those are not served.
fn is_served(url: &str) -> bool {
    let file = url.split('#').next().unwrap_or_default();
    file.is_empty() || PAGES.iter().any(|(name, _)| *name == file)
}

/// Gives each heading the name that links to it have.
fn name_headings(events: &mut [Event<'_>]) {
    for at in 0..events.len() {
        if !matches!(events[at], Event::Start(Tag::Heading { .. })) {
            continue;
        }
        let words =
            events[at..].iter().take_while(|it| !matches!(it, Event::End(TagEnd::Heading(_))));
        let text: String = words
            .filter_map(|event| match event {
                Event::Text(text) | Event::Code(text) => Some(text.as_ref()),
                _ => None,
            })
            .collect();
        if let Event::Start(Tag::Heading { id, .. }) = &mut events[at] {
            *id = Some(CowStr::from(slug(&text)));
        }
    }
}

fn slug(heading: &str) -> String {
    let kept = |letter: char| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        letter => letter.is_alphanumeric().then_some(letter),
    };
    heading.to_lowercase().chars().filter_map(kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file of each finding, and of everything else that names a heading.
    #[test]
    fn findings_lead_to_headings_that_are_there() {
        let sources = [include_str!("../watch/findings.rs"), include_str!("findings.rs")];
        let mut links = 0;
        for link in sources.iter().flat_map(|source| source.split('"')) {
            let Some((name, heading)) = link.split_once(".md#") else { continue };
            let body = body(&format!("{name}.md")).unwrap_or_else(|| panic!("no page {link}"));
            assert!(body.contains(&format!(" id=\"{heading}\"")), "no heading {link}");
            links += 1;
        }
        assert!(links > 10, "{links}");
    }

    #[test]
    fn pages_are_html_without_links_to_nowhere() {
        for (name, _) in PAGES {
            let body = body(name).unwrap();
            assert!(body.starts_with("<h1 id="), "{name}: {}", &body[..40]);
            assert!(!body.contains("href=\"..") && !body.contains("<script"), "{name}");
        }
        assert!(body("agent.md").unwrap().contains("<a href=\"operations.md#drives\">"));
        assert!(body("agent.md").unwrap().contains("<table>"));
        assert_eq!(body("../../../Cargo.toml"), None);
    }
}
