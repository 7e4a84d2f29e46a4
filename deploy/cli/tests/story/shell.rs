//! The commands of the page, carried out: a small part of what a shell does.
//!
//! Variables are replaced, and the ports of the page by free ones. A program in the background is
//! killed when the test ends.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The one that shells have.
const RACKLINE: &str = env!("CARGO_BIN_EXE_rackline");

/// What a command has said, with its errors.
pub(crate) struct Said {
    pub(crate) text: String,
    pub(crate) success: bool,
}

impl Said {
    fn ok(text: impl Into<String>) -> Self {
        Self { text: text.into(), success: true }
    }
}

#[derive(Default)]
pub(crate) struct Shell {
    variables: BTreeMap<String, String>,
    /// The address behind each port of the page.
    addresses: BTreeMap<String, String>,
    programs: BTreeMap<u32, Child>,
}

impl Shell {
    pub(crate) fn set(&mut self, name: &str, value: impl ToString) {
        self.variables.insert(name.to_owned(), value.to_string());
    }

    /// Takes a program that was started elsewhere.
    pub(crate) fn adopt(&mut self, name: &str, program: Child) {
        self.set(name, program.id());
        self.programs.insert(program.id(), program);
    }

    /// A command without its comment, with the values of its variables.
    pub(crate) fn command(&self, line: &str) -> String {
        self.expand(line.split(" #").next().unwrap_or_default().trim())
    }

    pub(crate) fn expand(&self, line: &str) -> String {
        let mut expanded = line.to_owned();
        // The longest name first: one may begin with another.
        let mut variables: Vec<_> = self.variables.iter().collect();
        variables.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        for (name, value) in variables {
            expanded = expanded.replace(&format!("${name}"), value);
        }
        assert!(
            !expanded.replace("=$!", "").contains('$'),
            "a variable without a value: {expanded}"
        );
        expanded
    }

    pub(crate) fn run(&mut self, line: &str) -> Said {
        let line = self.command(line);
        if let Some((command, variable)) = line.split_once(" & ") {
            let name = variable.split('=').next().unwrap_or_default().to_owned();
            self.start(command, &name);
            return Said::ok("");
        }
        let mut filters = line.split(" | ");
        let words: Vec<_> = filters.next().unwrap_or_default().split_whitespace().collect();
        let mut said = match words.as_slice() {
            ["export", ..] => Said::ok(""),
            ["mkdir", "-p", folders @ ..] => {
                folders.iter().for_each(|it| std::fs::create_dir_all(it).unwrap());
                Said::ok("")
            }
            ["kill", "-9", numbers @ ..] => self.kill(numbers, Signal::KILL),
            ["kill", numbers @ ..] => self.kill(numbers, Signal::TERM),
            ["curl", "-s", url] => self.get(url),
            ["rackline", arguments @ ..] => run(arguments),
            other => panic!("the story has no such command: {other:?}"),
        };
        for filter in filters {
            said.text = match filter.split_once(' ') {
                Some(("grep", word)) => lines_with(&said.text, word),
                Some(("jq", query)) => look_up(&said.text, query),
                _ => panic!("the story has no such filter: {filter}"),
            };
        }
        said
    }

    /// Starts a program in the background, and waits until it serves its metrics.
    fn start(&mut self, command: &str, name: &str) {
        let words: Vec<_> = command.split_whitespace().collect();
        let ["rackline", arguments @ ..] = words.as_slice() else {
            panic!("only rackline runs in the background: {command}");
        };
        let port = arguments.iter().position(|it| *it == "--metrics").unwrap() + 1;
        let mut free = arguments.to_vec();
        free[port] = "127.0.0.1:0";
        let mut process = Command::new(RACKLINE);
        process.args(&free).env("RUST_LOG", "info").env("NO_COLOR", "1").stdin(Stdio::null());
        let mut program = process.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(program.stderr.take().unwrap()).lines().map(Result::unwrap);
        let mut said = String::new();
        let address = log.by_ref().find_map(|line| {
            said.push_str(&line);
            let (_, behind) = line.split_once("address=")?;
            Some(behind.split_whitespace().next()?.to_owned())
        });
        let Some(address) = address else { panic!("{command} ended: {said}") };
        // A full pipe would stop the program.
        std::thread::spawn(move || log.count());
        self.addresses.insert(arguments[port].to_owned(), address);
        self.adopt(name, program);
    }

    /// Kills programs and waits for their ends. One that is told to end does so in order.
    fn kill(&mut self, numbers: &[&str], signal: Signal) -> Said {
        let numbers = numbers.iter().map(|number| number.parse().unwrap());
        let programs: Vec<_> =
            numbers.map(|it: u32| self.programs.remove(&it).expect("it runs")).collect();
        for program in &programs {
            kill_process(Pid::from_child(program), signal).unwrap();
        }
        for mut program in programs {
            let status = program.wait().unwrap();
            assert!(signal == Signal::KILL || status.success(), "{status}");
        }
        Said::ok("")
    }

    /// Waits for programs that end by themselves.
    pub(crate) fn wait(&mut self, numbers: &[&str]) {
        for number in numbers {
            let mut program = self.programs.remove(&number.parse().unwrap()).expect("it runs");
            assert!(program.wait().unwrap().success());
        }
    }

    fn get(&self, url: &str) -> Said {
        let (host, path) = url.split_once('/').unwrap();
        let address = self.addresses.get(host).unwrap_or_else(|| panic!("nobody serves {url}"));
        let Ok(mut stream) = TcpStream::connect(address) else { return Said::ok("") };
        write!(stream, "GET /{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{url}: {head}");
        Said::ok(body)
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        for program in self.programs.values_mut() {
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

fn run(arguments: &[&str]) -> Said {
    let mut command = Command::new(RACKLINE);
    let output =
        command.args(arguments).env("NO_COLOR", "1").stdin(Stdio::null()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    Said { text: String::from_utf8(text).unwrap(), success: output.status.success() }
}

fn lines_with(text: &str, word: &str) -> String {
    let lines = text.lines().filter(|line| line.contains(word) && !line.starts_with('#'));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// `jq -r '.LIST[].NAME'`
fn look_up(text: &str, query: &str) -> String {
    let query = query.trim_start_matches("-r ").trim_matches('\'');
    let (list, name) = query.trim_start_matches('.').split_once("[].").unwrap();
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let texts = value[list].as_array().into_iter().flatten();
    texts.filter_map(|it| it[name].as_str()).flat_map(|it| [it, "\n"]).collect()
}
