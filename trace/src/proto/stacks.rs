//! Messages of stack samples: threads, and the functions that they are in.

/// Threads of processes, by name.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProcessTree {
    /// The threads.
    #[prost(message, repeated, tag = "2")]
    pub threads: Vec<process_tree::Thread>,
}

/// Parts of [`ProcessTree`].
pub mod process_tree {
    /// One thread.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Thread {
        /// Its number.
        #[prost(int32, optional, tag = "1")]
        pub tid: Option<i32>,
        /// What the user reads.
        #[prost(string, optional, tag = "2")]
        pub name: Option<String>,
        /// Number of its process.
        #[prost(int32, optional, tag = "3")]
        pub tgid: Option<i32>,
    }
}

/// A part of a program's file as it lies in a process's memory.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Mapping {
    /// Its number.
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    /// What tells its build from all others, by iid.
    #[prost(uint64, optional, tag = "2")]
    pub build_id: Option<u64>,
    /// Where it begins in the file.
    #[prost(uint64, optional, tag = "8")]
    pub exact_offset: Option<u64>,
    /// Where it begins in the file, before what the process asked for was rounded.
    #[prost(uint64, optional, tag = "3")]
    pub start_offset: Option<u64>,
    /// Its first address.
    #[prost(uint64, optional, tag = "4")]
    pub start: Option<u64>,
    /// The address after its last one.
    #[prost(uint64, optional, tag = "5")]
    pub end: Option<u64>,
    /// What an address in the file is more than its offset there.
    #[prost(uint64, optional, tag = "6")]
    pub load_bias: Option<u64>,
    /// The file's path, by iids of its parts.
    #[prost(uint64, repeated, packed = "false", tag = "7")]
    pub path_string_ids: Vec<u64>,
}

/// A place in a function.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Frame {
    /// Its number.
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    /// The function, by iid.
    #[prost(uint64, optional, tag = "2")]
    pub function_name_id: Option<u64>,
    /// Its mapping, by iid.
    #[prost(uint64, optional, tag = "3")]
    pub mapping_id: Option<u64>,
    /// Its address, as in the mapping's file.
    #[prost(uint64, optional, tag = "4")]
    pub rel_pc: Option<u64>,
    /// The source file, by iid.
    #[prost(uint64, optional, tag = "5")]
    pub source_path_iid: Option<u64>,
    /// The line in it.
    #[prost(uint32, optional, tag = "6")]
    pub line_number: Option<u32>,
}

/// Functions that called each other.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Callstack {
    /// Its number.
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    /// Its frames, the outermost first, by iid.
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub frame_ids: Vec<u64>,
}

/// Defaults of a packet sequence's stack samples.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StackSampleDefaults {
    /// Who samples.
    #[prost(string, optional, tag = "1")]
    pub source: Option<String>,
    /// What [`StackSample::primary_weight`] counts.
    #[prost(message, optional, tag = "2")]
    pub primary_descriptor: Option<stack_sample::CounterDescriptor>,
}

/// Where a thread was at one moment.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StackSample {
    /// Which thread.
    #[prost(message, optional, tag = "1")]
    pub task_context: Option<stack_sample::TaskContext>,
    /// In which functions, by iid.
    #[prost(uint64, optional, tag = "6")]
    pub callstack_iid: Option<u64>,
    /// Why the outermost functions are missing.
    #[prost(string, optional, tag = "7")]
    pub unwind_error: Option<String>,
    /// How much the sample stands for.
    #[prost(uint64, optional, tag = "11")]
    pub primary_weight: Option<u64>,
}

/// Parts of [`StackSample`].
pub mod stack_sample {
    /// Which thread.
    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct TaskContext {
        /// Number of its process.
        #[prost(uint32, optional, tag = "2")]
        pub pid: Option<u32>,
        /// Its number.
        #[prost(uint32, optional, tag = "3")]
        pub tid: Option<u32>,
    }

    /// What is counted.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct CounterDescriptor {
        /// What the user reads.
        #[prost(string, optional, tag = "2")]
        pub name: Option<String>,
        /// What one is.
        #[prost(enumeration = "Unit", optional, tag = "3")]
        pub unit: Option<i32>,
    }

    /// What a counter counts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
    #[repr(i32)]
    pub enum Unit {
        /// Unsaid.
        Unspecified = 0,
        /// Nanoseconds.
        Nanoseconds = 1,
    }
}
