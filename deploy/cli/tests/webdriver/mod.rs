//! A real Chromium without a window, driven by ChromeDriver over the WebDriver protocol
//! (<https://www.w3.org/TR/webdriver2/>): HTTP with JSON, of which a test needs four calls.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

/// Debian's browser starts as root only without its sandbox, and asks for nothing beyond this host
/// with these flags.
const FLAGS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
];

/// A browser with one page. It ends with the test.
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

impl Browser {
    /// Starts one. Debian's packages `chromium` and `chromium-driver` have the programs.
    pub(crate) fn start() -> Self {
        let driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let mut driver = driver
            .expect("install the packages chromium and chromium-driver: this test needs a browser");
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.by_ref().map(Result::unwrap).find_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        std::thread::spawn(move || lines.count());
        let mut browser = Self { driver, port: port.unwrap(), session: String::new() };
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": FLAGS},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let session = browser.call("POST", "/session", &wanted);
        browser.session = format!("/session/{}", session["sessionId"].as_str().unwrap());
        browser
    }

    pub(crate) fn open(&self, address: &str) {
        self.post("/url", &json!({ "url": address }));
    }

    /// What a function body in JavaScript returns.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// The text that a reader sees in the element with this id.
    pub(crate) fn text(&self, id: &str) -> String {
        let text = self.run(&format!("return document.getElementById('{id}').innerText"));
        text.as_str().unwrap().to_owned()
    }

    /// The texts of the cells of a table, by rows.
    pub(crate) fn rows(&self, id: &str) -> Vec<Vec<String>> {
        let rows = self.run(&format!(
            "return [...document.querySelectorAll('#{id} tbody tr')]
                .map((row) => [...row.children].map((cell) => cell.innerText))"
        ));
        serde_json::from_value(rows).unwrap()
    }

    /// A screen of this size in pixels, dark or light, as a phone or a monitor has it.
    pub(crate) fn screen(&self, (width, height): (u32, u32), scheme: &str, phone: bool) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone});
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", &media);
    }

    /// The whole page as a PNG.
    pub(crate) fn picture(&self) -> Vec<u8> {
        let wanted = json!({"captureBeyondViewport": true});
        let picture = self.devtools("Page.captureScreenshot", &wanted);
        STANDARD.decode(picture["data"].as_str().unwrap()).unwrap()
    }

    /// What the browser complained of since the last call: errors of the program of the page,
    /// violations of its policy, answers that failed.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.post("/se/log", &json!({"type": "browser"}));
        let message = |entry: &Value| entry["message"].as_str().unwrap().to_owned();
        log.as_array().unwrap().iter().map(message).collect()
    }

    fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.post("/goog/cdp/execute", &json!({"cmd": command, "params": parameters}))
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.call("POST", &format!("{}{path}", self.session), body)
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let body = body.to_string();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        // ChromeDriver says how long its answer is, and keeps the connection.
        let mut answer = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(answer.read_line(&mut head).unwrap(), 0, "{method} {path}: {head}");
        }
        let head = head.to_ascii_lowercase();
        let (_, length) = head.split_once("content-length:").unwrap();
        let length = length.lines().next().unwrap().trim().parse().unwrap();
        let mut body = vec![0; length];
        answer.read_exact(&mut body).unwrap();
        let mut body: Value = serde_json::from_slice(&body).unwrap();
        assert!(head.starts_with("http/1.1 200"), "{method} {path}: {body:#}");
        body["value"].take()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser is of its driver's group, and would outlive it.
        let _ = kill_process_group(Pid::from_child(&self.driver), Signal::KILL);
        let _ = self.driver.wait();
    }
}
