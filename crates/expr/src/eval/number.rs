//! Numbers: from JSON and back, compared exactly, computed without a silent change.
//!
//! A JSON integer that fits an i64 is an int, else a uint if it fits a u64, else a double, as is every number with a
//! fraction or an exponent. A double is taken only if it stands for the number that was written: its shortest decimal
//! form, or its exact value, is that number. Other numbers are an error when an expression reads them. A value that an
//! expression only passes on keeps its digits.

use std::cmp::Ordering;

use serde_json::Number;

use crate::{EvalError, tree::Operator};

type Result<T> = std::result::Result<T, EvalError>;

/// A number, with the JSON that a double was read from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Num<'a> {
    Int(i64),
    Uint(u64),
    Double(f64, Option<&'a Number>),
}

impl<'a> Num<'a> {
    /// Reads a JSON number.
    pub(crate) fn read(number: &'a Number) -> Result<Num<'a>> {
        if let Some(n) = number.as_i64() {
            return Ok(Num::Int(n));
        }
        if let Some(n) = number.as_u64() {
            return Ok(Num::Uint(n));
        }
        let text = number.as_str();
        match double(text) {
            Some(n) => Ok(Num::Double(n, Some(number))),
            None => Err(EvalError::Number(format!("{} fits no number of the language without a change", short(text)))),
        }
    }

    /// As JSON. A double without a value in JSON is an error.
    pub(crate) fn json(self) -> Result<Number> {
        match self {
            Num::Int(n) => Ok(n.into()),
            Num::Uint(n) => Ok(n.into()),
            Num::Double(_, Some(written)) => Ok(written.clone()),
            Num::Double(n, None) => Number::from_f64(n)
                .ok_or_else(|| EvalError::Number(format!("{n} is not a number that JSON can express"))),
        }
    }

    /// What it is called in a message.
    pub(crate) fn type_name(self) -> &'static str {
        match self {
            Num::Int(_) => "int",
            Num::Uint(_) => "uint",
            Num::Double(..) => "double",
        }
    }

    /// The whole number, if it is one, whatever its type.
    pub(crate) fn whole(self) -> Option<i128> {
        match self {
            Num::Int(n) => Some(n.into()),
            Num::Uint(n) => Some(n.into()),
            // Every double below 2^64 converts to i128 without a change if it has no fraction.
            Num::Double(n, _) => (n.fract() == 0.0 && n.abs() < 2f64.powi(64)).then_some(n as i128),
        }
    }

    /// As a double, or an error if it would change.
    pub(crate) fn double(self) -> Result<f64> {
        let (n, converted) = match self {
            Num::Double(n, _) => return Ok(n),
            Num::Int(n) => (i128::from(n), n as f64),
            Num::Uint(n) => (i128::from(n), n as f64),
        };
        if converted as i128 == n {
            return Ok(converted);
        }
        Err(EvalError::Number(format!("{n} cannot be computed with a double: no double has this value")))
    }

    /// Compares by value, exactly, whatever the types. `None` if one is not a number.
    pub(crate) fn compare(self, other: Num) -> Option<Ordering> {
        match (self, other) {
            (Num::Double(a, _), Num::Double(b, _)) => a.partial_cmp(&b),
            (Num::Double(a, _), b) => compare(b.whole()?, a).map(Ordering::reverse),
            (a, Num::Double(b, _)) => compare(a.whole()?, b),
            (a, b) => Some(a.whole()?.cmp(&b.whole()?)),
        }
    }

    /// The negative number.
    pub(crate) fn negated(self) -> Result<Num<'a>> {
        match self {
            Num::Int(n) => n.checked_neg().map(Num::Int).ok_or_else(|| overflow("-", self, None)),
            Num::Uint(n) => i64::try_from(-i128::from(n)).map(Num::Int).map_err(|_| overflow("-", self, None)),
            Num::Double(n, _) => Ok(Num::Double(-n, None)),
        }
    }

    /// Computes. Two ints give an int, two uints a uint; an int and a uint give an int, or a uint if only that fits;
    /// with a double it is a double.
    pub(crate) fn compute(self, operator: Operator, other: Num) -> Result<Num<'a>> {
        if let (Num::Double(..), _) | (_, Num::Double(..)) = (self, other) {
            if operator != Operator::Remainder {
                let (a, b) = (self.double()?, other.double()?);
                let result = match operator {
                    Operator::Add => a + b,
                    Operator::Subtract => a - b,
                    Operator::Multiply => a * b,
                    _ => a / b,
                };
                return Ok(Num::Double(result, None));
            }
        }
        let (Some(a), Some(b)) = (self.whole(), other.whole()) else {
            return Err(EvalError::Value("% takes whole numbers only".to_owned()));
        };
        let result = match operator {
            Operator::Add => a.checked_add(b),
            Operator::Subtract => a.checked_sub(b),
            Operator::Multiply => a.checked_mul(b),
            Operator::Divide | Operator::Remainder if b == 0 => {
                return Err(EvalError::Value(format!("{} {} 0: division by zero", self.told(), operator.sign())));
            }
            Operator::Divide => a.checked_div(b),
            _ => a.checked_rem(b),
        };
        let result = result.ok_or_else(|| overflow(operator.sign(), self, Some(other)))?;
        let int = i64::try_from(result).ok().map(Num::Int);
        let uint = u64::try_from(result).ok().map(Num::Uint);
        match (self, other) {
            (Num::Int(_), Num::Int(_)) => int,
            (Num::Uint(_), Num::Uint(_)) => uint,
            _ => int.or(uint),
        }
        .ok_or_else(|| overflow(operator.sign(), self, Some(other)))
    }

    /// As text.
    pub(crate) fn told(self) -> String {
        match self {
            Num::Int(n) => n.to_string(),
            Num::Uint(n) => n.to_string(),
            Num::Double(n, _) if n == 0.0 || (1e-5..1e17).contains(&n.abs()) || !n.is_finite() => n.to_string(),
            Num::Double(n, _) => format!("{n:e}"),
        }
    }
}

fn overflow(sign: &str, a: Num, b: Option<Num>) -> EvalError {
    let told = match b {
        Some(b) => format!("{} {sign} {}", a.told(), b.told()),
        None => format!("{sign}({})", a.told()),
    };
    EvalError::Value(format!("{told} is outside of what {} can express", a.type_name()))
}

fn compare(a: i128, b: f64) -> Option<Ordering> {
    if b.is_nan() {
        return None;
    }
    // `a` is an i64 or a u64. Beyond these a comparison with the bound decides, and below it the conversion is exact.
    if b >= 2f64.powi(65) {
        return Some(Ordering::Less);
    }
    if b <= -(2f64.powi(65)) {
        return Some(Ordering::Greater);
    }
    let whole = b.trunc();
    Some(a.cmp(&(whole as i128)).then(0.0.partial_cmp(&(b - whole)).unwrap_or(Ordering::Equal)))
}

/// The double that a decimal number stands for, if it stands for that number.
pub(crate) fn double(text: &str) -> Option<f64> {
    let n: f64 = text.parse().ok().filter(|n: &f64| n.is_finite())?;
    let written = decimal(text)?;
    if written == decimal(&format!("{n:e}"))? {
        return Some(n);
    }
    // An integer may be exactly a double that has a shorter form.
    let exact = text.parse::<i128>().ok()?;
    (n.abs() < 2f64.powi(126) && n as i128 == exact).then_some(n)
}

/// A decimal number as its digits without outer zeros, and the power of ten of the last one.
fn decimal(text: &str) -> Option<(bool, String, i64)> {
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let kept = digits.trim_end_matches('0');
    let power = exponent.parse::<i64>().ok()?.checked_sub(fraction.len() as i64)?;
    let power = power.checked_add((digits.len() - kept.len()) as i64)?;
    let kept = kept.trim_start_matches('0');
    if kept.is_empty() { Some((negative, String::new(), 0)) } else { Some((negative, kept.to_owned(), power)) }
}

fn short(text: &str) -> String {
    if text.len() <= 40 { text.to_owned() } else { format!("{}… ({} characters)", &text[..40], text.len()) }
}
