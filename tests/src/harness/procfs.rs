//! The processes of one server, found by a variable in their environment, which
//! survives whatever happens to their parents.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;

/// The variable that marks all processes of one server.
pub const MARK: &str = "NANO_TEST_SERVER";

/// One process, as /proc shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its number.
    pub pid: Pid,
    /// The program's name.
    pub name: String,
}

impl Found {
    /// Sends it a signal; one that is gone already gets none.
    pub fn signal(&self, signal: Signal) {
        let _ = kill(self.pid, signal);
    }

    /// Whether its main thread waits for something (state S of proc(5)).
    pub fn is_asleep(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid));
        // The name before it, in parentheses, may hold anything.
        let stat = stat.unwrap_or_default();
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('S'))
    }

    /// What it holds now.
    pub fn usage(&self) -> Usage {
        let dir = format!("/proc/{}", self.pid);
        let status = fs::read_to_string(format!("{dir}/status")).expect("it lives");
        let number = |key: &str| -> usize {
            let rest = status.lines().find_map(|line| line.strip_prefix(key));
            let number = rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
            number.unwrap_or_else(|| panic!("no {key} in {status}"))
        };
        Usage {
            resident: number("VmRSS:") << 10,
            threads: number("Threads:"),
            descriptors: fs::read_dir(format!("{dir}/fd")).expect("ours").count(),
        }
    }
}

/// What a process holds.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Bytes of resident memory.
    pub resident: usize,
    /// Threads.
    pub threads: usize,
    /// Open descriptors.
    pub descriptors: usize,
}

/// All living processes that carry the mark. A zombie has no environment any more.
pub fn marked(mark: &str) -> Vec<Found> {
    let variable = format!("{MARK}={mark}");
    let processes = fs::read_dir("/proc").expect("/proc");
    processes
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let carries = environ
                .split(|byte| *byte == 0)
                .any(|entry| entry == variable.as_bytes());
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            carries.then(|| Found {
                pid: Pid::from_raw(pid),
                name: name.trim_end().to_owned(),
            })
        })
        .collect()
}
