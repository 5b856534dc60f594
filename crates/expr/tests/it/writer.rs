//! Writes random expressions that mostly make sense.

/// What an expression is meant to be.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Of {
    Bool,
    Number,
    Text,
    Numbers,
    Time,
}

const ALL: [Of; 5] = [Of::Bool, Of::Number, Of::Text, Of::Numbers, Of::Time];

/// Takes each decision from the next byte; when none is left, it takes the shortest way to an end.
pub(crate) struct Writer<'a> {
    choices: std::slice::Iter<'a, u8>,
    /// How many macros are open.
    open: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(choices: &'a [u8]) -> Writer<'a> {
        Writer { choices: choices.iter(), open: 0 }
    }

    pub(crate) fn write(&mut self) -> String {
        let of = ALL[self.choose(5)];
        self.expr(of, 5)
    }

    fn choose(&mut self, n: usize) -> usize {
        self.choices.next().map_or(0, |byte| usize::from(*byte) % n)
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.choose(of.len())]
    }

    fn expr(&mut self, of: Of, depth: usize) -> String {
        // Now and then a type that does not fit.
        let of = if self.choose(40) == 39 { self.pick(&ALL) } else { of };
        self.fitting(of, depth)
    }

    /// For the parts of conditions and lists: the checker allows a mixture there, and then knows no type.
    fn fitting(&mut self, of: Of, depth: usize) -> String {
        if depth == 0 || self.choices.len() == 0 {
            return self.leaf(of);
        }
        let depth = depth - 1;
        match self.choose(10) {
            0 => return self.leaf(of),
            1 => {
                let condition = self.expr(Of::Bool, depth);
                return format!("({condition} ? {} : {})", self.fitting(of, depth), self.fitting(of, depth));
            }
            _ => {}
        }
        match of {
            Of::Bool => self.truth(depth),
            Of::Number => self.number(depth),
            Of::Text => self.text(depth),
            Of::Numbers => self.numbers(depth),
            Of::Time => {
                let time = self.expr(Of::Time, depth);
                format!("({time} {} duration('90m'))", self.pick(&["+", "-"]))
            }
        }
    }

    fn truth(&mut self, depth: usize) -> String {
        match self.choose(6) {
            0 => {
                let (a, sign) = (self.expr(Of::Bool, depth), self.pick(&["&&", "||"]));
                format!("({a} {sign} {})", self.expr(Of::Bool, depth))
            }
            1 => format!("!{}", self.expr(Of::Bool, depth)),
            2 => {
                let of = self.pick(&[Of::Number, Of::Text, Of::Time]);
                let (a, sign) = (self.expr(of, depth), self.pick(&["<", "<=", ">", ">=", "==", "!="]));
                format!("({a} {sign} {})", self.expr(of, depth))
            }
            3 => format!("({} in {})", self.expr(Of::Number, depth), self.expr(Of::Numbers, depth)),
            4 => {
                let (a, what) = (self.expr(Of::Text, depth), self.pick(&["contains", "startsWith", "endsWith"]));
                format!("{a}.{what}({})", self.expr(Of::Text, depth))
            }
            _ => {
                let (list, what) = (self.expr(Of::Numbers, depth), self.pick(&["all", "exists", "exists_one"]));
                self.fold(&list, what, Of::Bool, depth)
            }
        }
    }

    fn number(&mut self, depth: usize) -> String {
        match self.choose(6) {
            0 | 1 => {
                let (a, sign) = (self.expr(Of::Number, depth), self.pick(&["+", "-", "*", "/", "%"]));
                format!("({a} {sign} {})", self.expr(Of::Number, depth))
            }
            2 => format!(
                "size({})",
                if self.choose(2) == 0 { self.expr(Of::Text, depth) } else { self.expr(Of::Numbers, depth) }
            ),
            3 => format!("{}[{}]", self.expr(Of::Numbers, depth), self.expr(Of::Number, depth)),
            4 => {
                let (what, a) = (self.pick(&["min", "max"]), self.expr(Of::Number, depth));
                format!("{what}({a}, {})", self.expr(Of::Number, depth))
            }
            _ => format!("{}.{}()", self.expr(Of::Time, depth), self.pick(&["getHours", "getMonth", "getDayOfWeek"])),
        }
    }

    fn text(&mut self, depth: usize) -> String {
        match self.choose(6) {
            0 | 1 => format!("({} + {})", self.expr(Of::Text, depth), self.expr(Of::Text, depth)),
            2 => {
                let of = self.pick(&[Of::Number, Of::Bool, Of::Time, Of::Text]);
                format!("string({})", self.expr(of, depth))
            }
            3 => {
                let (a, b) = (self.expr(Of::Text, depth), self.expr(Of::Text, depth));
                format!("{a}.replace({b}, {})", self.expr(Of::Text, depth))
            }
            4 => format!("input.tags.join({})", self.expr(Of::Text, depth)),
            _ => format!("{}.upperAscii()", self.expr(Of::Text, depth)),
        }
    }

    fn numbers(&mut self, depth: usize) -> String {
        match self.choose(4) {
            0 => format!("({} + {})", self.expr(Of::Numbers, depth), self.expr(Of::Numbers, depth)),
            1 => format!("[{}, {}]", self.fitting(Of::Number, depth), self.fitting(Of::Number, depth)),
            2 => {
                let list = self.expr(Of::Numbers, depth);
                self.fold(&list, "map", Of::Number, depth)
            }
            _ => {
                let list = self.expr(Of::Numbers, depth);
                self.fold(&list, "filter", Of::Bool, depth)
            }
        }
    }

    fn fold(&mut self, list: &str, what: &str, body: Of, depth: usize) -> String {
        // Now and then a variable that hides a name.
        let var = if self.choose(20) == 19 { "input".to_owned() } else { format!("x{}", self.open) };
        self.open += 1;
        let body = self.expr(body, depth);
        self.open -= 1;
        format!("{list}.{what}({var}, {body})")
    }

    fn leaf(&mut self, of: Of) -> String {
        let leaves: &[&str] = match of {
            Of::Bool => &["true", "input.order.paid", "has(input.order.id)", "false"],
            Of::Number if self.open > 0 && self.choose(2) == 0 => return format!("x{}", self.open - 1),
            Of::Number => {
                &["1", "input.order.n", "input.order.total", "2.5", "0", "3u", "input.counts[0]", "input['order'].n"]
            }
            Of::Text => &["'a'", "input.order.id", "''", "input.tags[0]"],
            // Not `[]`: nothing is known of its elements, so the checker allows everything.
            Of::Numbers => &["input.counts", "[1, 2]"],
            Of::Time => &["now", "timestamp('2026-03-01T10:30:00Z')"],
        };
        self.pick(leaves).to_owned()
    }
}
