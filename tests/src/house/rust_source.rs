//! Rust source without its comments and texts, for rules that look for code.

/// `source` with every comment, string and character replaced by spaces. Lines and columns stay
/// where they were; what is not ASCII becomes a question mark.
#[must_use]
pub fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut code = String::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = at + skipped(&bytes[at..], prefix(&bytes[..at])).max(1);
        let kept = end == at + 1 && !matches!(bytes[at], b'"' | b'\'');
        for byte in &bytes[at..end] {
            code.push(match byte {
                b'\n' => '\n',
                byte if kept && byte.is_ascii() => char::from(*byte),
                _ if kept => '?',
                _ => ' ',
            });
        }
        at = end;
    }
    code
}

/// The words of `code`: where each identifier, number or other character starts, and its text.
pub fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let bytes = code.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        while bytes.get(at)?.is_ascii_whitespace() {
            at += 1;
        }
        let start = at;
        at += bytes[start..].iter().take_while(|byte| in_word(**byte)).count().max(1);
        Some((start, &code[start..at]))
    })
}

fn in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The identifier that ends where the next text starts: `b`, `c` and `br` belong to a string.
fn prefix(before: &[u8]) -> &[u8] {
    let length = before.iter().rev().take_while(|byte| in_word(**byte)).count();
    &before[before.len() - length..]
}

/// Bytes at the start of `rest` that are a comment, a string or a character; 0 when it is code.
fn skipped(rest: &[u8], prefix: &[u8]) -> usize {
    match rest {
        [b'/', b'/', ..] => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment(rest),
        [b'"', ..] => quoted(rest, b'"'),
        [b'r', b'"' | b'#', ..] if matches!(prefix, b"" | b"b" | b"c") => raw_string(rest),
        [b'\'', b'\\', ..] => quoted(rest, b'\''),
        // A character, which ends soon, and not a lifetime, which does not end.
        [b'\'', first, ..] => {
            let width = match first {
                0..0x80 => 1,
                0x80..0xe0 => 2,
                0xe0..0xf0 => 3,
                0xf0.. => 4,
            };
            if rest.get(1 + width) == Some(&b'\'') { width + 2 } else { 0 }
        }
        _ => 0,
    }
}

fn block_comment(rest: &[u8]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// A raw string; 0 for a raw identifier such as `r#type`.
fn raw_string(rest: &[u8]) -> usize {
    let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return 0;
    }
    let content = 2 + hashes;
    let closes = |end: &[u8]| end[0] == b'"' && end[1..].iter().all(|byte| *byte == b'#');
    let end = rest[content..].windows(1 + hashes).position(closes);
    end.map_or(rest.len(), |end| content + end + 1 + hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_texts_are_gone_and_code_stays() {
        for (source, expected) in [
            ("a // unsafe\nb", "a          \nb"),
            ("a /* x /* y */ z */ b", "a                   b"),
            ("f(\"un\\\"safe\") + 1", "f(          ) + 1"),
            ("r#\"a \"b\" c\"# + r#type", "             + r#type"),
            ("br\"\\\" x", "b     x"),
            ("for\"x\"", "for   "),
            ("'a' + '\\'' + '\"'; 'outer: loop", "    +      +    ; 'outer: loop"),
            ("fn f<'a>(x: &'a str)", "fn f< a>(x: & a str)"),
            ("\"never closed", "             "),
        ] {
            let code = code_only(source);
            assert_eq!(code.replace('\'', " "), expected.replace('\'', " "), "of {source}");
            assert_eq!(code.len(), source.len());
        }
    }

    #[test]
    fn characters_of_any_width_are_texts() {
        let wide = char::from_u32(0x1f600).unwrap();
        let code = code_only(&format!("['{wide}', 'x'] unsafe"));
        assert_eq!(code.split_whitespace().collect::<String>(), "[,]unsafe");
    }

    #[test]
    fn words_are_found_with_their_places() {
        let found: Vec<_> = words("mod a_1;{").collect();
        assert_eq!(found, [(0, "mod"), (4, "a_1"), (7, ";"), (8, "{")]);
    }
}
